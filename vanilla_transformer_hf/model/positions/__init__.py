"""Position schemes; the rows of `config/position_schemes.py` name the file."""
