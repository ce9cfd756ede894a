"""Cache every vector that a server returns, so that nothing is paid for twice.

One SQLite file per model behind an endpoint, outside of run folders. It holds hashes of texts, their vectors
and what was found out about the server; no text, and no key.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint.address import Address
from stickytoken.errors import RunError

CACHE_VARIABLE = "STICKYTOKEN_CACHE"
FILE = "answers.sqlite"
_KEY_BYTES = 16
_QUERIED = 500
_BUSY_SECONDS = 30
_NAME_SHOWN = 60
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (text BLOB PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def answers_folder(address: Address, dimensions: int | None) -> Path:
    """Return the folder of a model's answers: below STICKYTOKEN_CACHE, or else the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(own or shared).expanduser() / ("" if own else "stickytoken") / "endpoints"
    whole = f"{address.base_url}\0{address.model}\0{dimensions}"
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:_NAME_SHOWN]
    return root / f"{stem or 'model'}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


class Answers:
    """The vectors that a model returned, by text. Several threads and processes may use it.

    Args:
        folder: where the file is, or will be once something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of texts that were answered before."""
        by_key = {_key(text): text for text in texts}
        found = {key: vector for keys in _parts(list(by_key)) for key, vector in self._rows(keys)}
        return {by_key[key]: np.frombuffer(vector, dtype="<f4") for key, vector in found.items()}

    def keep(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Store the vectors of texts; an existing one is not replaced."""
        rows = [(_key(text), vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        with self._used(create=True) as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def fact(self, name: str) -> str | None:
        """Return a stored fact about the server by name."""
        if not self.exists:
            return None
        with self._used() as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Store a fact about the server."""
        with self._used(create=True) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    @property
    def exists(self) -> bool:
        """Whether anything is stored."""
        return (self.folder / FILE).is_file()

    def __len__(self) -> int:
        if not self.exists:
            return 0
        with self._used() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _rows(self, keys: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
        if not self.exists:
            return []
        marks = ",".join("?" * len(keys))
        with self._used() as connection:
            query = f"SELECT text, vector FROM answers WHERE text IN ({marks})"  # marks only, no value
            rows: list[tuple[bytes, bytes]] = connection.execute(query, keys).fetchall()
        return rows

    @contextmanager
    def _used(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._opened(create)
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise RunError(
                    f"the answers in {self.folder} cannot be used ({error}): free space or fix its "
                    f"permissions; if {FILE} is damaged, move it away, and its answers are requested again"
                ) from error

    def _opened(self, create: bool) -> sqlite3.Connection:
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.folder / FILE, timeout=_BUSY_SECONDS, check_same_thread=False)
        # Readers and one writer at a time; a kill loses nothing that was committed.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
        return connection


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]


def _parts(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(keys), _QUERIED):
        yield keys[start : start + _QUERIED]
