"""Kinds of attention, one file each, and the table of them."""
