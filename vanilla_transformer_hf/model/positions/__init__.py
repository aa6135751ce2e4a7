"""
Kinds of positions: added to embeddings, or acting on pairs of a query and a key. Whoever imports one of these files
imports all, so that each scheme is in `POSITION_ENCODINGS`: a new file in this folder is in no list.
"""

from importlib import import_module
from pkgutil import iter_modules


for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
