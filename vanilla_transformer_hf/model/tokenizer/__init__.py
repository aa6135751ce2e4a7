"""What the files of a tokenizer may hold."""
