"""Translations over HTTP: requests, the searches that they share, and the application."""
