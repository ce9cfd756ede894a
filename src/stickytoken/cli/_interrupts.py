"""Ctrl-C: whether it was pressed, and the exit status that says so."""

from __future__ import annotations

import signal
import time
from types import FrameType

INTERRUPTED = 130
# A key that bounces, an impatient second press, or a tool that signals both a process and its group.
_SAME_PRESS_SECONDS = 1.0
_received: list[float] = []


def remember_interrupts() -> None:
    """Record Ctrl-C in addition to raising KeyboardInterrupt.

    A library that is interrupted during an import or inside foreign code sometimes raises another error
    instead. Presses in quick succession count as one, so that they do not interrupt the tidying up that the
    first one began. A process that ignores the signal, such as a shell's background job, keeps ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed since `remember_interrupts`."""
    return bool(_received)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, because the command is ending with the status of the first one.

    Libraries with a signal handler of their own raise KeyboardInterrupt, and Python raises it again later.
    """
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    pressed = time.monotonic()
    if not _received or pressed - _received[-1] >= _SAME_PRESS_SECONDS:
        _received.append(pressed)
        signal.default_int_handler(number, frame)
