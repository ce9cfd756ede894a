"""Get the vectors of texts: requests until they are answered, several at a time, and a cache of all answers.

The cache is one SQLite file per model behind an endpoint, outside of run folders, so that nothing is paid for
twice. It holds hashes of texts, their vectors and what was found out about the server; no text, and no key.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._client import (
    KEPT,
    Encoding,
    Failure,
    RefusedError,
    Reply,
    Requester,
    TemporaryError,
    given_up,
    refused,
)
from stickytoken.encoders.endpoint.cost import Spending
from stickytoken.encoders.endpoint.options import Address
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
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_MOST_DOUBLED = 10
# Requests in flight: enough to hide most of the waiting, and few enough for small servers.
AT_ONCE = 4
# After an interrupt or an error, answers that are on their way are paid for: wait for them a little.
_GRACE = 5.0
_POLL = 0.2

Keep = Callable[[Mapping[str, NDArray[np.float32]]], None]


def answers_folder(address: Address, dimensions: int | None) -> Path:
    """Return the folder of a model's answers: below STICKYTOKEN_CACHE, or else the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(own or shared).expanduser() / ("" if own else "stickytoken") / "endpoints"
    whole = f"{address.base_url}\0{address.model}\0{dimensions}"
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:_NAME_SHOWN]
    return root / f"{stem or 'model'}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


class Answers:
    """The vectors that a model returned, by text, in a folder. Several threads and processes may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of texts that were answered before."""
        by_key = {_key(text): text for text in texts}
        keys = list(by_key)
        parts = [keys[start : start + _QUERIED] for start in range(0, len(keys), _QUERIED)]
        found = {key: vector for part in parts for key, vector in self._rows(part)}
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


@dataclass
class Attempts:
    """The failed attempts at one request: when to send it again, and when to give up.

    Attributes:
        patience: seconds for which it may fail.
        most: largest number of failures, refusals of a busy server apart; None is any.
        most_unreached: largest number of failures to get any answer; None is any.
        final: failures after which it is not sent again.
        failed: number of failures.
        failing_since: when it first failed, on the monotonic clock.
    """

    patience: float
    most: int | None = None
    most_unreached: int | None = None
    final: tuple[type[TemporaryError], ...] = ()
    failed: int = 0
    failing_since: float | None = None
    _counted: int = 0
    _unreached: int = 0

    def pause_after(self, error: TemporaryError, now: float) -> float | None:
        """Note a failure at a time, and return the seconds before the next attempt; None to give up."""
        self.failed += 1
        self._counted += not error.busy
        self._unreached += error.unreachable
        if self.failing_since is None:
            self.failing_since = now
        pause = self._pause(error.wait)
        counts = ((self._counted, self.most), (self._unreached, self.most_unreached))
        over = any(most is not None and count >= most for count, most in counts)
        late = now + pause - self.failing_since > self.patience
        return None if late or over or isinstance(error, self.final) else pause

    def given_up(self, last: TemporaryError) -> str:
        """Say why there is no further attempt."""
        if self.failed == 1 and last.wait is not None and last.wait > self.patience:
            longer = f"longer than the {self.patience:,.0f} s allowed"
            return f"asks to wait for {last.wait:,.0f} s, {longer} ({last})"
        return f"gave no usable answer in {self.failed} attempts ({last})"

    def _pause(self, asked: float | None) -> float:
        # What the server asks for and a little more, or else ever longer ones at random.
        jitter = random.SystemRandom()
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self.failed, _MOST_DOUBLED))
        if asked is not None:
            return asked + jitter.uniform(0.0, 0.1 * min(asked, most) + 0.01)
        return jitter.uniform(most / 2, most)


class NoAnswerError(Exception):
    """A request without a usable answer that is not sent again.

    Attributes:
        last: its last failure.
    """

    def __init__(self, reason: str, last: TemporaryError) -> None:
        super().__init__(reason)
        self.last = last


def until_answered(
    requester: Requester,
    texts: Sequence[str],
    encoding: Encoding,
    attempts: Attempts,
    spending: Spending,
    reserved: float,
    rest: Callable[[TemporaryError, float], None] = lambda error, pause: time.sleep(pause),
) -> Reply:
    """Send texts in one request until it is answered; only the answer itself is left to count.

    Each attempt reserves tokens, and `rest` waits before the next one.
    """
    while True:
        spending.reserve(reserved)
        try:
            return requester.send(texts, encoding)
        except TemporaryError as error:
            spending.failed(reserved, error.paid)
            last = error
        except Exception:
            spending.failed(reserved, paid=False)
            raise
        pause = attempts.pause_after(last, time.monotonic())
        if pause is None:
            raise NoAnswerError(attempts.given_up(last), last)
        rest(last, pause)


class Sender:
    """Sends requests, and hands over every answer as it comes.

    `expected` estimates the tokens that the server will count for texts; `waits` is told the reason and the
    seconds of a long pause.
    """

    def __init__(
        self,
        requester: Requester,
        spending: Spending,
        patience: float,
        expected: Callable[[Sequence[str]], float],
        counts_tokens: bool,
        waits: Callable[[str, float], None],
    ) -> None:
        self.requester = requester
        self.spending = spending
        self.patience = patience
        self.counts_tokens = counts_tokens
        self.waits = waits
        self.held_until = 0.0  # on the monotonic clock: a server that is too busy for one request is for all
        self._expected = expected
        self._lock = threading.Lock()

    def expected(self, texts: Sequence[str]) -> float:
        """Estimate the tokens of texts."""
        with self._lock:  # tokenizers are for one thread at a time
            return self._expected(texts)

    def send_all(
        self,
        batches: Sequence[Sequence[str]],
        encoding: Encoding,
        keep: Keep,
        without_vector: Callable[[str, str], None] | None = None,
    ) -> None:
        """Send all requests, and call `keep` with the vectors of every answer, in whatever thread.

        `without_vector` is told a text that the server refuses, and why; without it, such a text ends all.
        """
        work = _Work(self, batches, encoding, keep, without_vector)
        threads = [
            threading.Thread(target=work.run, name="endpoint", daemon=True)
            for _ in range(min(AT_ONCE, len(batches)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not work.over.is_set():
                    thread.join(_POLL)
        finally:
            work.over.set()
            end = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        if work.failures:
            raise work.failures[0]


class _Work:
    def __init__(
        self,
        sender: Sender,
        batches: Sequence[Sequence[str]],
        encoding: Encoding,
        keep: Keep,
        without_vector: Callable[[str, str], None] | None,
    ) -> None:
        self._sender = sender
        self._batches = deque(batches)
        self._encoding = encoding
        self._keep = keep
        self._without_vector = without_vector
        self.over = threading.Event()
        self.failures: list[Exception] = []

    def run(self) -> None:
        """Send one request after the other; the first failure ends the work of all threads."""
        try:
            while (texts := self._next()) is not None and not self.over.is_set():
                self._send(texts, Attempts(self._sender.patience))
        except _OverError:
            return
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            self.failures.append(error)
            self.over.set()

    def _next(self) -> Sequence[str] | None:
        try:
            return self._batches.popleft()
        except IndexError:
            return None

    def _send(self, texts: Sequence[str], attempts: Attempts) -> None:
        self._pause(0.0)
        sender = self._sender
        reserved = sender.expected(texts)

        def rest(error: TemporaryError, pause: float) -> None:
            if pause >= 1:
                sender.waits(str(error), pause)
            if error.failure is Failure.LATE and len(texts) > 1:
                raise _TooSlowError
            if error.too_many:
                sender.held_until = max(sender.held_until, time.monotonic() + pause)
            self._pause(pause)

        reason = ""
        try:
            reply = until_answered(
                sender.requester, texts, self._encoding, attempts, sender.spending, reserved, rest
            )
        except NoAnswerError as error:
            raise given_up(sender.requester.address.name, str(error), kept=KEPT) from None
        except (RefusedError, _TooSlowError) as error:
            reason = str(error)
        else:
            counted = reply.tokens if sender.counts_tokens else None
            sender.spending.answered(reserved, round(reserved) if counted is None else counted)
            self._keep(dict(zip(texts, reply.vectors, strict=True)))
            return
        if len(texts) > 1:  # fewer texts are answered sooner, and in the end the one that is refused is alone
            middle = len(texts) // 2
            for half in (texts[:middle], texts[middle:]):
                self._send(half, replace(attempts))
        elif self._without_vector is None:
            raise refused(sender.requester.address.name, reason)
        else:
            self._without_vector(texts[0], reason)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := max(until, self._sender.held_until) - time.monotonic()) > 0:
            self.over.wait(left)
            if self.over.is_set():
                raise _OverError


class _TooSlowError(Exception):
    pass


class _OverError(Exception):
    pass
