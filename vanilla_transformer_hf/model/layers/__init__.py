"""What every layer is made of: norms, feed-forward, dropout, projections; and the loss."""
