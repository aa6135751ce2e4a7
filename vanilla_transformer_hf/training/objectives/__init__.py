"""Losses and optimizers beside the plain ones."""
