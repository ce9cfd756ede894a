"""The command line: one thin file a command, and nothing heavy imported for --help."""
