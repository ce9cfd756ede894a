"""A cache of the vectors from servers and of their refusals: one SQLite file per model, for all runs."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint import Address
from stickytoken.errors import RunError
from stickytoken.machine import cache_folder
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.validation import file_path

_FILE = "answers.sqlite"
# Maximum number of values in one SQL query. Old versions of SQLite allow at most 999.
_VALUES_IN_QUERY = 500
# Version of the tables, to be increased when the meaning of a table changes. A cache of another version is
# emptied.
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (text BLOB PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refusals (text BLOB PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS unchecked (text BLOB PRIMARY KEY);
"""


class AnswerCache:
    """The cache of one model, which several threads and processes may use at the same time.

    The cache holds vectors of texts, the server's reasons for refusing other texts, and facts about the
    server. Texts are stored only as hashes, and API keys are not stored. A new vector is *unchecked* until
    somebody has made sure that the same model still answers. It is stored nevertheless, because it is paid
    for, and a killed process must not lose it.
    """

    def __init__(self, address: Address, options: EndpointOptions) -> None:
        # Everything in a request that can change its vectors has a cache of its own.
        fields = json.dumps(options.fields_of_requests, sort_keys=True)
        identity = f"{address.base_url}\0{address.model}\0{options.request_dimensions}\0{fields}"
        identity_hash = hashlib.sha256(identity.encode()).hexdigest()[:12]
        # The name of the model tells people which folder is which.
        readable_name = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:60] or "model"
        caches = file_path("STICKYTOKEN_CACHE", cache_folder())
        self.folder = caches / "endpoints" / f"{readable_name}-{identity_hash}"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the stored vectors, keyed by text; texts without a stored vector are left out."""
        stored = self._select("SELECT text, vector FROM answers WHERE text IN", texts)
        return {text: np.frombuffer(vector_bytes, dtype="<f4") for text, vector_bytes in stored.items()}

    def refusals(self, texts: Sequence[str]) -> dict[str, str]:
        """Return the server's latest reasons for refusing texts, keyed by text; other texts are left out."""
        return self._select("SELECT text, reason FROM refusals WHERE text IN", texts)

    def keep(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Store vectors, keyed by text, as unchecked.

        They stay so until `confirm` (the server still has the same model) or `forget_unchecked` (it may not).
        If another process has stored a text meanwhile, its vector stays, but becomes unchecked, too: this
        server has just been asked for the same text.
        """
        keys_and_vectors = []
        keys = []
        for text, vector in vectors.items():
            key = _hash_text(text)
            keys_and_vectors.append((key, vector.astype("<f4").tobytes()))
            keys.append((key,))
        with self._transaction() as connection:
            # Another process may have stored the same texts meanwhile, hence IGNORE.
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", keys_and_vectors)
            connection.executemany("INSERT OR IGNORE INTO unchecked VALUES (?)", keys)

    def unchecked(self) -> list[bytes]:
        """Return the keys of all unchecked vectors, for `confirm`."""
        return [key for (key,) in self._fetch_rows("SELECT text FROM unchecked")]

    def unchecked_among(self, texts: Sequence[str]) -> bool:
        """Return whether the vector of one of the texts is unchecked."""
        unchecked = self._select("SELECT text, text FROM unchecked WHERE text IN", texts)
        return len(unchecked) > 0

    def confirm(self, keys: Sequence[bytes]) -> None:
        """Record that unchecked vectors are of the right model."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM unchecked WHERE text = ?", [(key,) for key in keys])

    def forget_unchecked(self) -> None:
        """Delete all unchecked vectors, because another model may have given them."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM answers WHERE text IN (SELECT text FROM unchecked)")
            connection.execute("DELETE FROM unchecked")

    def keep_refusal(self, text: str, reason: str) -> None:
        """Record that the server gave no vector for a text, and why."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO refusals VALUES (?, ?)", (_hash_text(text), reason))

    def fact(self, name: str) -> str | None:
        """Return the value that `note` stored under a name; None if `note` stored no value under it."""
        rows = self._fetch_rows("SELECT value FROM facts WHERE name = ?", [name])
        return str(rows[0][0]) if rows else None

    def note(self, name: str, value: str) -> None:
        """Store a fact about the server under a name, in place of any earlier fact with that name."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def __len__(self) -> int:
        rows = self._fetch_rows("SELECT COUNT(*) FROM answers")
        return int(rows[0][0]) if rows else 0  # no row if there is no file yet

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _select(self, query: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return a column of the rows of some texts, keyed by text; texts without a row are left out.

        ``query`` selects the hash of a text and this column, and ends with ``IN``.
        """
        text_of_hash = {_hash_text(text): text for text in texts}
        hashes = list(text_of_hash)
        values: dict[str, Any] = {}
        for start in range(0, len(hashes), _VALUES_IN_QUERY):
            queried_hashes = hashes[start : start + _VALUES_IN_QUERY]
            placeholders = ",".join("?" * len(queried_hashes))
            for text_hash, value in self._fetch_rows(f"{query} ({placeholders})", queried_hashes):
                values[text_of_hash[text_hash]] = value
        return values

    def _fetch_rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if not (self.folder / _FILE).is_file():  # a look into an empty cache should not make a file
            return []
        with self._lock_connection() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # A connection commits at the end of its block; after an error, it rolls back.
        with self._lock_connection() as connection, connection:
            yield connection

    @contextmanager
    def _lock_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                    # Nobody closes an encoder, so the connection is closed when the cache is no longer used.
                    weakref.finalize(self, self._connection.close)
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise RunError(
                    f"the cached answers in {self.folder} cannot be used ({error}): free disk space or fix "
                    f"the folder's permissions; if {_FILE} is damaged, move it away, and its answers will be "
                    "requested again"
                ) from error

    def _open(self) -> sqlite3.Connection:
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.folder / _FILE, timeout=30, check_same_thread=False)
        try:
            _prepare_tables(connection)
        except BaseException:  # also if the user interrupts, because nobody else could close the connection
            connection.close()
            raise
        return connection


def _prepare_tables(connection: sqlite3.Connection) -> None:
    # With write-ahead logging, other processes can read while one writes, and a killed process loses no
    # committed data.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.executescript(_TABLES)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:  # the tables are new, or mean something else
        with connection:  # all of it or nothing
            for table in ("answers", "refusals", "facts", "unchecked"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")


def _hash_text(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
