"""From parallel text to a folder that is ready to publish."""
