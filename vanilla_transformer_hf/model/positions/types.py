"""The table of all position schemes. Whoever imports it has imported all files of this folder."""

from ..layers.position_hooks import POSITION_ENCODINGS


__all__ = ["POSITION_ENCODINGS"]
