"""Readers of foreign file formats, which never run what a file holds."""
