"""
Functions that are called when one of our configs is made, and when one of our model classes is defined.

What is heavy to import is registered no sooner (see `registration.py`). The files that travel have none of this.
"""

from collections.abc import Callable


CONFIG_MADE: list[Callable[[], None]] = []
MODEL_DEFINED: list[Callable[[], None]] = []
