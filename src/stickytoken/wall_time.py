"""Start times for the durations that are reported to users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


@contextmanager
def of_command() -> Iterator[None]:
    """Return a context manager for running a command. It records the command's start time.

    A command loads its model before it calls the library. The reported duration includes the time for
    loading.
    """
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def beginning() -> float:
    """Return the start time of the work that the caller is about to do, as a `time.perf_counter` value.

    For the first piece of work in a command, this is the start of the command. Otherwise it is the current
    time, so that no time is counted twice.
    """
    began = _command_began.get()
    if began is None:
        return time.perf_counter()
    _command_began.set(None)
    return began
