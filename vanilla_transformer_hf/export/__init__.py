"""
Exports of our model to engines that run it without this package: one file per engine, one procedure for all.

The other way out, into the checkpoints of other training toolkits, is `conversion/export.py`.
"""

from .comparison import ExportError
from .export import ENGINES, Exported, export_for, kept_copy


__all__ = ["ENGINES", "ExportError", "Exported", "export_for", "kept_copy"]
