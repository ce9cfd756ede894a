"""What needs no model: folders of cache and runs, process-wide settings, cores, hashes and precisions."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

_LOG = logging.getLogger("stickytoken")

RUNS_FOLDER = Path("runs")
"""The folder, below the current one, that holds run folders unless a user names another."""


def cache_folder() -> Path:
    """Return the folder of stickytoken's cache, which need not exist.

    The cache holds the vectors that endpoints return. The environment variable STICKYTOKEN_CACHE overrides
    the default folder.
    """
    configured = os.environ.get("STICKYTOKEN_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stickytoken"


Value = TypeVar("Value")


class SharedSetting(Generic[Value]):
    """A setting of the whole process that several threads may change at once.

    The first thread to enter `at` remembers the user's value, and the last thread to leave `at` restores the
    user's value. If each thread restored the value that it found on entering `at`, a thread could restore
    another thread's temporary value.

    Args:
        read: Returns the current value.
        write: Sets a value.
        per_thread: Whether the setting is thread-local, so that each thread must restore its own copy.
    """

    def __init__(
        self, read: Callable[[], Value], write: Callable[[Value], object], *, per_thread: bool = False
    ) -> None:
        self._read = read
        self._write = write
        self._per_thread = per_thread  # whether each thread has a value of its own
        self._guard = threading.Lock()
        self._active_blocks = 0  # number of `at` blocks that have begun and not ended, in all threads
        self._original: Value | None = None  # the user's value; None before the first block

    @property
    def original(self) -> Value:
        """The value that the user has set, even while `at` overrides it."""
        with self._guard:
            if self._active_blocks and self._original is not None:
                return self._original
            return self._read()

    @contextmanager
    def at(self, value: Value) -> Iterator[None]:
        """Set a value for the duration of a ``with`` block.

        The first block to begin remembers the value that the user has set, and the last block to end restores
        this value. If the setting is thread-local, each ``with`` block restores the value in its own thread.
        """
        with self._guard:
            if self._active_blocks == 0:
                self._original = self._read()
            self._active_blocks += 1
            self._write(value)
        try:
            yield
        finally:
            with self._guard:
                self._active_blocks -= 1
                is_last = self._active_blocks == 0
                if (is_last or self._per_thread) and self._original is not None:
                    self._write(self._original)


def available_cores() -> int:
    """Return the number of cores that the CPU affinity and the container quota allow; at least 1."""
    from joblib import cpu_count

    return int(cpu_count())


def digest(value: Any) -> str:
    """Return the SHA-256 hash of a JSON value in hexadecimal; the order of its keys does not matter."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Precision(StrEnum):
    """A reduced precision for matrix products."""

    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
