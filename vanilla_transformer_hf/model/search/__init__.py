"""Greedy and beam search, and the decoder that computes one position at a time."""
