"""Runs of an encoder alone or a decoder alone."""
