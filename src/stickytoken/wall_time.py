"""Start times for the durations that are reported to users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


@contextmanager
def started_by_command() -> Iterator[None]:
    """Record the current time as the start of a command, which ends with the ``with`` block.

    The first call of `beginning` in the block returns this time, and forgets it. The duration of the first
    piece of work therefore includes what the command did before this work, such as loading the model.
    """
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def beginning() -> float:
    """Return the start time of the work that the caller is about to do, as a `time.perf_counter` value.

    For the first piece of work in a command, the start time is the start of the command. For any other work,
    the start time is the current time.
    """
    began = _command_began.get()
    if began is None:
        return time.perf_counter()
    _command_began.set(None)  # so that later work does not count the time before this call again
    return began
