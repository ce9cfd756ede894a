"""The commands. Each command parses its options, calls a library function and prints the result."""
