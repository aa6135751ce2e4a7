"""Translations over HTTP: what requests ask for, the searches that they share, and the application."""
