"""A stdout that takes no more: its reader closed early, such as head, or the disk is full."""

from __future__ import annotations

import errno
import os
import sys

CLOSED_PIPE = 141  # as a shell reports a program that SIGPIPE ended

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk is full or cannot be written."""
    return isinstance(error, OSError) and error.errno in _UNWRITABLE


def silence_stdout() -> None:
    """Send the rest of stdout nowhere, so that flushing it at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
