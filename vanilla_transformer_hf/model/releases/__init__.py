"""What differs between releases of transformers 5: no other module compares or works around them."""
