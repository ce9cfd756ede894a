"""Two things at once in one interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 0.0005


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Let a server answer while libraries are imported beside it.

    A page is a hundred small answers, and each of them waits several times for its turn, by default 5 ms.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
