"""The Trainer, from what it does with checkpoints to what it publishes."""
