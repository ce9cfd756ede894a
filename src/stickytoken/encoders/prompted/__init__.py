"""Sentence embeddings from prompted language models."""
