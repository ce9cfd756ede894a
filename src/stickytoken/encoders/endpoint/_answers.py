"""A cache of the answers of models behind endpoints, so that nothing is paid for twice.

It is one SQLite file per model, outside of run folders. It holds hashes of texts, their vectors and what was
found out about the server; no text, and no key.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint.options import Address
from stickytoken.errors import RunError
from stickytoken.machine import cache_folder

_FILE = "answers.sqlite"
_KEY_BYTES = 16
_QUERIED = 500
_BUSY_SECONDS = 30
_NAME_SHOWN = 60
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (text BLOB PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def answers_folder(address: Address, dimensions: int | None) -> Path:
    root = cache_folder().expanduser() / "endpoints"
    whole = f"{address.base_url}\0{address.model}\0{dimensions}"
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:_NAME_SHOWN]
    return root / f"{stem or 'model'}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


class Answers:
    """The vectors of a model by text. Several threads and processes may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        by_key = {_key(text): text for text in texts}
        keys = list(by_key)
        found = {}
        for start in range(0, len(keys), _QUERIED):
            part = keys[start : start + _QUERIED]
            marks = ",".join("?" * len(part))  # marks only, no value
            rows = self._read(f"SELECT text, vector FROM answers WHERE text IN ({marks})", part)
            found.update({by_key[key]: np.frombuffer(vector, dtype="<f4") for key, vector in rows})
        return found

    def keep(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        rows = [(_key(text), vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        with self._used() as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def fact(self, name: str) -> str | None:
        rows = self._read("SELECT value FROM facts WHERE name = ?", [name])
        return str(rows[0][0]) if rows else None

    def note(self, name: str, value: str) -> None:
        with self._used() as connection, connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def __len__(self) -> int:
        rows = self._read("SELECT COUNT(*) FROM answers")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[bytes, ...]]:
        if not (self.folder / _FILE).is_file():
            return []
        with self._used() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._opened()
            except (sqlite3.Error, OSError) as error:
                raise RunError(
                    f"the answers in {self.folder} cannot be used ({error}): free space or fix its "
                    f"permissions; if {_FILE} is damaged, move it away, and its answers are requested again"
                ) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.folder / _FILE, timeout=_BUSY_SECONDS, check_same_thread=False)
            # Readers and one writer at a time; a kill loses nothing that was committed.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_TABLES)
            self._connection = connection
        return self._connection


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]
