"""Scores of translations, and the same as a module of the `evaluate` library."""

from .scores import EVALUATE_MODULE, METRICS, Scores, score_translations, write_predictions


__all__ = ["EVALUATE_MODULE", "METRICS", "Scores", "score_translations", "write_predictions"]
