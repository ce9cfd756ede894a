"""Start times for the durations that are reported to users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command_began: ContextVar[float | None] = ContextVar("command_began", default=None)


@contextmanager
def of_command() -> Iterator[None]:
    """Record the start time of a command, for the `beginning` of the work in the ``with`` block.

    A command loads its model before it calls the library, so that the duration that it reports includes the
    time for loading.
    """
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def beginning() -> float:
    """Return the start time of the work that the caller is about to do, as a `time.perf_counter` value.

    For the first piece of work in a command, the start time is the start of the command. For later work in
    the command, and for work outside a command, the start time is the current time.
    """
    began = _command_began.get()
    if began is None:
        return time.perf_counter()
    _command_began.set(None)  # so that the time before this call is not included in a second duration
    return began
