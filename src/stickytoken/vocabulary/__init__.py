"""Vocabulary entries: their categories and kinds."""
