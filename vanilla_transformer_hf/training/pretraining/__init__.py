"""Weights that a translation model begins from: denoising of text, and models of one stack."""
