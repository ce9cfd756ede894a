"""Run filled prompts through a decoder: token ids, hooks on layers, caches and batches."""
