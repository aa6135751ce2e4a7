"""Copies of weights laid out for fast products: packed, int8, the most likely tokens."""
