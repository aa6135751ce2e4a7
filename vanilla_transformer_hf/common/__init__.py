"""What several rooms share: files, opening of models, matrix products, how commands end."""
