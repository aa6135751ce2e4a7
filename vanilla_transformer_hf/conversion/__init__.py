"""
Checkpoints of other toolkits as our model: one small file per source with a table of keys, one procedure for all.

A source is a module with a subclass of `Source`, which stands in `CONVERTERS`.
"""

from .converter import CONVERTERS, convert, parse_option
from .source import ConversionError


__all__ = ["CONVERTERS", "ConversionError", "convert", "parse_option"]
