"""Repair a model: the same model without its sticky tokens, in a folder that loads without this package."""
