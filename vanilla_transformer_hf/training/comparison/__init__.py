"""Several runs of one recipe, compared."""
