"""All that travels with a saved model, joined into few files by `bundle`. It imports nothing else of ours."""
