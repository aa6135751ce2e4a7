"""What a saved model brings: its code, joined into few files, and names that modules had before."""
