"""Arguments and options that commands share, by what they are about."""
