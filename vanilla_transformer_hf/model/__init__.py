"""All that travels with a saved model, joined into six files by `bundle`. It imports nothing else of ours."""
