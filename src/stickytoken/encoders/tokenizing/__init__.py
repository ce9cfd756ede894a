"""Tokenizers of every kind behind one batched interface."""
