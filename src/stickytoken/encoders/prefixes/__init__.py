"""Compute common beginnings of inputs once, for causal models."""
