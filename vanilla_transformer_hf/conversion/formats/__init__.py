"""Readers of foreign file formats, which never execute a file's content."""
