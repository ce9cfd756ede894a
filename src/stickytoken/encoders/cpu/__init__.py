"""Packed and low-precision linear layers on a CPU."""
