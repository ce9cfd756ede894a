"""Scan documents for copies of sticky tokens, and measure the effect of the copies.

This file imports nothing, so that worker processes can load the package without NumPy or Polars.
"""
