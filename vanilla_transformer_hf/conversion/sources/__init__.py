"""Checkpoints of other toolkits: one file per toolkit."""
