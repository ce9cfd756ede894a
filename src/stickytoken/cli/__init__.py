"""The command line. Commands are thin, and --help imports nothing that is slow to import."""
