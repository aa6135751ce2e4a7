"""Documents: what is translated of a file, and the file with its translation."""
