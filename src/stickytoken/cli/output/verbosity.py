"""How much a command says on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Verbosity(IntEnum):
    """How much is printed besides results and errors."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


# A process runs one command, and what its threads print is under the same level.
_levels = [Verbosity.NORMAL]


def current_verbosity() -> Verbosity:
    """Return the verbosity of the running command."""
    return _levels[-1]


@contextmanager
def verbosity(level: Verbosity) -> Iterator[None]:
    """Set the verbosity for a block."""
    _levels.append(level)
    try:
        yield
    finally:
        _levels.pop()
