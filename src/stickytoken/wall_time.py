"""When the work began whose duration is reported to users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


@contextmanager
def of_command() -> Iterator[None]:
    """Count the time of a command from here: it loads its model before it calls the library."""
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def beginning() -> float:
    """Return when the calling work began, on the clock of `time.perf_counter`.

    The first work of a command began with the command. All other work begins now, so that no time is counted
    twice.
    """
    began = _command_began.get()
    if began is None:
        return time.perf_counter()
    _command_began.set(None)
    return began
