"""Arguments and options that commands share, by subject."""
