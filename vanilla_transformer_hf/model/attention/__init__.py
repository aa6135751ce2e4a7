"""
Kinds of attention, one file each. Whoever imports one of them imports all, so that each is in `ATTENTION_TYPES`: a new
file in this folder is in no list.
"""

from importlib import import_module
from pkgutil import iter_modules


for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
