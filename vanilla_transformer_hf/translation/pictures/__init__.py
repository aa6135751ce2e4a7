"""Pictures of attention to tokens, recordings and images."""
