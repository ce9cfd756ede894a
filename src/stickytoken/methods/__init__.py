"""Detection methods, and the statistics they share."""
