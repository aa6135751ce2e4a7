"""
Front ends: what makes the input of the encoder's first layer of a source that has no tokens. Whoever imports one of
these files imports all, so that each is in `FRONT_END_CLASSES`: a new file in this folder is in no list.
"""

from importlib import import_module
from pkgutil import iter_modules


for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
