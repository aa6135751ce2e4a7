"""Models of an encoder alone and of a decoder alone."""
