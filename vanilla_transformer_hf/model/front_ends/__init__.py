"""Front ends; the rows of `config/front_ends.py` name the file."""
