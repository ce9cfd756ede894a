"""The version of this package: the one place where it is set."""

__version__ = "0.3.0"
