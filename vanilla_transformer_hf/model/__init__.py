"""All that travels with a saved model, joined into five files by `bundle`. It imports nothing else of ours."""
