"""Ctrl-C: whether it was pressed, and the exit status that says so."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED = 130
_received: list[int] = []


def remember_interrupts() -> None:
    """Record Ctrl-C in addition to raising KeyboardInterrupt.

    A library that is interrupted during an import or inside foreign code sometimes raises another error
    instead. A process that ignores the signal, such as a shell's background job, keeps ignoring it.
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
        signal.signal(signal.SIGINT, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    signal.default_int_handler(number, frame)
