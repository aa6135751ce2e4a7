"""What every layer is made of: norms, feed-forward, dropout, linear maps; and the loss."""
