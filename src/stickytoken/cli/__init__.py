"""The command line: one thin file per command, and no heavy import for --help."""
