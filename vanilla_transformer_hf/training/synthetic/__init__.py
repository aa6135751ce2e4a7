"""Text that a model translates for the training of another."""
