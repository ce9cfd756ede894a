"""A reader of stdout that closes early, such as head."""

from __future__ import annotations

import os
import sys

CLOSED_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def silence_stdout() -> None:
    """Send the rest of stdout nowhere, so that flushing it at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
