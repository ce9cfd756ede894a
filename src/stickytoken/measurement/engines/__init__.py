"""Engines execute plan items through an encoder and commit shards."""
