"""The version of the package, for the rooms; a module without imports."""

__version__ = "0.1.0"
