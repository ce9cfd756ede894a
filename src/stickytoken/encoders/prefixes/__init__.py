"""Common beginnings of inputs, computed once for causal models."""
