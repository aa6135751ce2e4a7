"""
Checkpoints of other toolkits as our model: one small file per source around one table of keys, one flow for all.

A source is a module with the names that `Source` lists, and a row in `CONVERTERS`.
"""

from .converter import CONVERTERS, convert
from .source import ConversionError


__all__ = ["CONVERTERS", "ConversionError", "convert"]
