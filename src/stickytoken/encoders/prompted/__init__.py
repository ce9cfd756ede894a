"""Sentence embeddings from language models through a prompt."""
