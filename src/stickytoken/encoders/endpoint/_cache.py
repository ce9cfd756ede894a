"""The answers of servers, and the texts that they refused, in one SQLite file per model, outside of runs."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint import Address
from stickytoken.errors import RunError
from stickytoken.machine import cache_folder

_FILE = "answers.sqlite"
# Number of values in one SQL query. Old versions of SQLite allow 999.
_VALUES_IN_QUERY = 500
# Raised when the meaning of a table changes. Version 0 stored a refused text as a vector of zeros.
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (text BLOB PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refusals (text BLOB PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_WITHOUT_ZEROS = "DELETE FROM answers WHERE vector = zeroblob(length(vector))"


class Answers:
    """The cache of one model, for several threads and processes.

    It holds the vectors of texts, the reasons for which the server refused texts, and what was found out
    about the server. Texts are stored as hashes, and keys not at all.
    """

    def __init__(self, address: Address, dimensions: int | None) -> None:
        identity = f"{address.base_url}\0{address.model}\0{dimensions}"
        stem = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:60]
        name = f"{stem or 'model'}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self.folder = cache_folder().expanduser() / "endpoints" / name
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of the texts that were answered."""
        vectors = self._select("SELECT text, vector FROM answers WHERE text IN", texts)
        return {text: np.frombuffer(vector, dtype="<f4") for text, vector in vectors.items()}

    def refusals(self, texts: Sequence[str]) -> dict[str, str]:
        """Return the texts that the server did not embed when it was last asked, and why."""
        return self._select("SELECT text, reason FROM refusals WHERE text IN", texts)

    def keep(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        rows = [(_key(text), vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        with self._used() as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def keep_refusal(self, text: str, reason: str) -> None:
        with self._used() as connection, connection:
            connection.execute("INSERT OR REPLACE INTO refusals VALUES (?, ?)", (_key(text), reason))

    def fact(self, name: str) -> str | None:
        """Return what was noted about the server under a name."""
        rows = self._read("SELECT value FROM facts WHERE name = ?", [name])
        return str(rows[0][0]) if rows else None

    def note(self, name: str, value: str) -> None:
        """Note something about the server under a name."""
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

    def _select(self, query: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return the values that a query finds, by text. The query ends with ``IN``."""
        by_key = {_key(text): text for text in texts}
        keys = list(by_key)
        values: dict[str, Any] = {}
        for start in range(0, len(keys), _VALUES_IN_QUERY):
            queried_keys = keys[start : start + _VALUES_IN_QUERY]
            placeholders = ",".join("?" * len(queried_keys))  # no value is part of the SQL
            for key, value in self._read(f"{query} ({placeholders})", queried_keys):
                values[by_key[key]] = value
        return values

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if not (self.folder / _FILE).is_file():
            return []
        with self._used() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to one thread at a time, and explain errors of SQLite."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise RunError(
                    f"the answers in {self.folder} cannot be used ({error}): free space or fix its "
                    f"permissions; if {_FILE} is damaged, move it away, and its answers are requested again"
                ) from error

    def _open(self) -> sqlite3.Connection:
        """Connect to the file, with its tables in the present form."""
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.folder / _FILE, timeout=30, check_same_thread=False)
        # Readers and one writer at a time; a kill loses nothing that was committed.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version < _VERSION:
            with connection:
                connection.execute(_WITHOUT_ZEROS)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        return connection


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
