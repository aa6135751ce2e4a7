"""Checkpoints: files, weights, what continues a run, averages."""
