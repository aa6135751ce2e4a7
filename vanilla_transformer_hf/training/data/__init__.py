"""Corpora, tokenized and in batches."""
