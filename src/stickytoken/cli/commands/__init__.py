"""The commands. Each parses its options, calls a library function and prints the result."""
