"""Scan documents for copies of sticky tokens.

This file imports nothing, so that worker processes can load the package without NumPy or Polars.
"""
