"""The version of the package, written here alone; pyproject.toml and `__version__` read it."""

# Saved configs record it, and a saved model carries a copy with its code. A release that adds or changes config fields
# raises one of the first two numbers.
VERSION = "0.1.0"
