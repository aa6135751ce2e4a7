"""Texts in: read, split, put together, counted."""
