"""Scores, alignments and attention of given translations."""
