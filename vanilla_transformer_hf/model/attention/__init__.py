"""Kinds of attention, one file each; the rows of `config/attention_kinds.py` name the file."""
