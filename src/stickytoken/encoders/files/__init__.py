"""Where a model is, and what its files say about it."""
