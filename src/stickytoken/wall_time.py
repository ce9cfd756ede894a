"""The start time of the work whose duration is reported to users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


@contextmanager
def of_command() -> Iterator[None]:
    """Return a context manager that starts the clock of a command.

    A command loads its model before it calls the library. This clock includes the loading time.
    """
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def beginning() -> float:
    """Return the start time of the work that the caller is about to do, as a `time.perf_counter` value.

    For the first work in a command, that is the start of the command. For all other work, it is the current
    time, so that no time is counted twice.
    """
    began = _command_began.get()
    if began is None:
        return time.perf_counter()
    _command_began.set(None)
    return began
