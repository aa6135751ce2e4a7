"""Models that read speech or images and write text."""
