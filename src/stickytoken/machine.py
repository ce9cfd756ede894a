"""Small facts that are computed once and then read from the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

_LOG = logging.getLogger("stickytoken")


def cache_folder() -> Path:
    if own := os.environ.get("STICKYTOKEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stickytoken"


def recalled(name: str) -> dict[str, Any] | None:
    try:
        found = json.loads((cache_folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def keep(name: str, values: Mapping[str, Any]) -> None:
    """Keep values under a name; a cache that cannot be written costs time, and is no error."""
    folder = cache_folder()
    temporary = folder / f".{name}.{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(folder / f"{name}.json")
    except OSError as error:
        _LOG.info("%s is not cached: %s", name, error)
        with suppress(OSError):
            temporary.unlink()


Value = TypeVar("Value")


class SharedSetting(Generic[Value]):
    """A setting of the whole process that several threads may need at once.

    The first that needs it notes the value that the user had, and the last puts it back. If each put back
    what it had found, a value of ours would stay whenever threads leave in another order than they came.

    Args:
        read: gives the value.
        write: sets it.
        per_thread: whether each thread has a value of its own, which it must put back itself.
    """

    def __init__(
        self, read: Callable[[], Value], write: Callable[[Value], object], *, per_thread: bool = False
    ) -> None:
        self._read = read
        self._write = write
        self._per_thread = per_thread
        self._guard = threading.Lock()
        self._users = 0
        self._original: Value | None = None

    @property
    def original(self) -> Value:
        """The value that the user has set."""
        with self._guard:
            return self._original if self._users and self._original is not None else self._read()

    @contextmanager
    def at(self, value: Value) -> Iterator[None]:
        with self._guard:
            if not self._users:
                self._original = self._read()
            self._users += 1
            self._write(value)
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                is_last = not self._users
                if (is_last or self._per_thread) and self._original is not None:
                    self._write(self._original)


def available_cores() -> int:
    """Number of cores by affinity and by the quota of the container, at least 1."""
    from joblib import cpu_count

    return int(cpu_count())


def digest(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Precision(StrEnum):  # of matrix products
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
