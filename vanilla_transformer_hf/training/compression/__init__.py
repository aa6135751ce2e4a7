"""Smaller models: pruned, or taught by a larger one."""
