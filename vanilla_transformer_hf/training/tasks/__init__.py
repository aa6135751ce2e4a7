"""What the runs of each task do of their own."""
