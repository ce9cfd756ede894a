"""Send requests, several at a time, until all are answered."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._advice import KEPT, given_up, refused
from stickytoken.encoders.endpoint._attempts import Attempts, NoAnswerError, until_answered
from stickytoken.encoders.endpoint._request import (
    Encoding,
    Failure,
    RefusedError,
    Requester,
    TemporaryError,
)
from stickytoken.encoders.endpoint.cost import Spending

# Requests in flight: enough to hide most of the waiting, and few enough for small servers.
AT_ONCE = 4
# After an interrupt or an error, answers that are on their way are paid for: wait for them a little.
_GRACE = 5.0
_POLL = 0.2

Keep = Callable[[Mapping[str, NDArray[np.float32]]], None]


class Sender:
    """Sends requests, and hands over every answer as it comes.

    Args:
        requester: sends one request.
        spending: counts what it costs.
        patience: seconds for which a request may fail before everything ends.
        expected: estimates the tokens that the server will count for texts.
        counts_tokens: whether the server reports tokens.
        waits: called with the reason and the seconds of a long pause.
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
        """Estimate the tokens of texts, in one thread at a time."""
        with self._lock:
            return self._expected(texts)

    def send_all(
        self,
        batches: Sequence[Sequence[str]],
        encoding: Encoding,
        keep: Keep,
        without_vector: Callable[[str, str], None] | None = None,
    ) -> None:
        """Send all requests; the functions are called in threads of their own.

        Args:
            batches: texts of each request.
            encoding: form of the vectors.
            keep: called with the vectors of every answer.
            without_vector: called with a text that the server does not take, and the reason; without it, such
                a text ends everything.
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
    """The requests of one call, for several threads."""

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
        """Wait so long, and until the server wants requests again."""
        until = time.monotonic() + seconds
        while (left := max(until, self._sender.held_until) - time.monotonic()) > 0:
            self.over.wait(left)
            if self.over.is_set():
                raise _OverError


class _TooSlowError(Exception):
    """A request of several texts that was not answered in time."""


class _OverError(Exception):
    """Nothing more is to be sent."""
