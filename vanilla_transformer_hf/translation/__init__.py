"""Text in, translations, scores and alignments out."""
