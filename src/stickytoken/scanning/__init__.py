"""Scan documents for copies of sticky tokens, and measure what the copies do to them.

Nothing is imported here: the processes that search documents load this package without NumPy or Polars.
"""
