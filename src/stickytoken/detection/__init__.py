"""Detection methods: frozen plans, scores and verdicts, in pure NumPy."""
