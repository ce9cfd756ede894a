"""Send requests in parallel until all are answered: retries, waiting, and giving up."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stickytoken.encoders.endpoint._advice import KEPT, given_up, refused
from stickytoken.encoders.endpoint._attempts import Attempts
from stickytoken.encoders.endpoint._rate import Concurrency
from stickytoken.encoders.endpoint._recipient import Recipient
from stickytoken.encoders.endpoint._request import (
    Encoding,
    Failure,
    RefusedError,
    Reply,
    Requester,
    TemporaryError,
)

# After an interrupt or an error, answers that are on their way are paid for: wait for them a little.
_GRACE = 5.0
_POLL = 0.2

Outcome = Reply | Exception


@dataclass(order=True)
class _Batch:
    """A request and what has happened to it.

    Attributes:
        due: when it may be sent, on the monotonic clock.
        number: keeps the order among those that are due.
        texts: its texts.
        attempts: those that failed.
        reserved: tokens that it may cost.
    """

    due: float
    number: int
    texts: Sequence[str] = field(compare=False)
    attempts: Attempts = field(compare=False)
    reserved: float = field(default=0.0, compare=False)


class Sender:
    """Sends requests and hands over every answer as it comes.

    Args:
        requester: sends one request.
        patience: seconds for which a request may fail before everything ends.
        waits: called with the reason and the seconds of a long pause.
    """

    def __init__(
        self,
        requester: Requester,
        patience: float,
        waits: Callable[[str, float], None] | None = None,
    ) -> None:
        self._requester = requester
        self._name = requester.address.name
        self._patience = patience
        self._waits = waits or (lambda reason, seconds: None)
        self._rate = Concurrency()
        self._numbers = itertools.count()

    def send_all(self, batches: Sequence[Sequence[str]], encoding: Encoding, recipient: Recipient) -> None:
        """Send all requests.

        Args:
            batches: texts of each request.
            encoding: form of the vectors.
            recipient: allows each request, and takes what becomes of it.
        """
        work = _Work(self._requester, encoding, recipient)
        ready = deque(_Batch(0.0, next(self._numbers), texts, Attempts(self._patience)) for texts in batches)
        later: list[_Batch] = []
        try:
            while ready or later or work.running:
                now = time.monotonic()
                while later and later[0].due <= now:
                    ready.appendleft(heapq.heappop(later))
                while ready and len(work.running) < self._rate.limit:
                    ready[0].reserved = recipient.allow(ready[0].texts)
                    work.start(ready.popleft())
                wait = min(_POLL, max(0.0, later[0].due - now)) if later else _POLL
                for batch, outcome in work.finished(wait):
                    self._handle(batch, outcome, ready, later, recipient)
        finally:
            work.settle()

    def _handle(
        self,
        batch: _Batch,
        outcome: Outcome,
        ready: deque[_Batch],
        later: list[_Batch],
        recipient: Recipient,
    ) -> None:
        if isinstance(outcome, Reply):
            self._rate.answered(len(batch.texts), time.monotonic())
            return
        if isinstance(outcome, RefusedError):
            self._take_apart(batch, outcome, ready, recipient)
            return
        if not isinstance(outcome, TemporaryError):
            raise outcome
        now = time.monotonic()
        if outcome.too_many or outcome.failure is Failure.LATE:
            self._rate.refused(now)
        pause = batch.attempts.pause_after(outcome, now)
        if pause is None:
            raise given_up(self._name, batch.attempts.given_up(outcome), kept=KEPT)
        if pause >= 1:
            self._waits(str(outcome), pause)
        if outcome.failure is Failure.LATE and len(batch.texts) > 1:  # fewer texts are answered sooner
            ready.extendleft(self._halves(batch))
            return
        if outcome.too_many:  # what else waits would be refused as well
            for other in (*ready, *later):
                other.due = max(other.due, now + pause)
            later.extend(ready)
            ready.clear()
        batch.due = now + pause
        later.append(batch)
        heapq.heapify(later)

    def _take_apart(
        self, batch: _Batch, refusing: RefusedError, ready: deque[_Batch], recipient: Recipient
    ) -> None:
        """Send a refused request in halves, until it is a single text that the server does not take."""
        if len(batch.texts) > 1:
            ready.extendleft(self._halves(batch))
        elif not recipient.refused(batch.texts[0], str(refusing)):
            raise refused(self._name, refusing)

    def _halves(self, batch: _Batch) -> list[_Batch]:
        middle = len(batch.texts) // 2
        return [
            _Batch(0.0, next(self._numbers), texts, replace(batch.attempts))
            for texts in (batch.texts[middle:], batch.texts[:middle])
        ]


class _Work:
    """The requests in flight, each in a thread that no exit waits for."""

    def __init__(self, requester: Requester, encoding: Encoding, recipient: Recipient) -> None:
        self._requester = requester
        self._encoding = encoding
        self._recipient = recipient
        self._outcomes: queue.SimpleQueue[tuple[_Batch, Outcome]] = queue.SimpleQueue()
        self.running: dict[int, _Batch] = {}

    def start(self, batch: _Batch) -> None:
        self.running[batch.number] = batch
        threading.Thread(target=self._send, args=(batch,), name="endpoint", daemon=True).start()

    def finished(self, wait: float) -> list[tuple[_Batch, Outcome]]:
        """Return finished requests, having handed over their answers; wait for one at most so long."""
        found: list[tuple[_Batch, Outcome]] = []
        if not self.running:
            time.sleep(wait)
            return found
        try:
            found.append(self._outcomes.get(timeout=wait))
            while True:
                found.append(self._outcomes.get_nowait())
        except queue.Empty:
            pass
        for batch, outcome in found:
            self.running.pop(batch.number)
            if isinstance(outcome, Reply):
                self._recipient.received(batch.texts, outcome, batch.reserved)
            else:
                self._recipient.failed(batch.reserved, isinstance(outcome, TemporaryError) and outcome.paid)
        return found

    def settle(self) -> None:
        """Hand over the answers of requests that are still in flight, if they come soon."""
        end = time.monotonic() + _GRACE
        while self.running and (left := end - time.monotonic()) > 0:
            self.finished(min(left, _POLL))

    def _send(self, batch: _Batch) -> None:
        outcome: Any
        try:
            outcome = self._requester.send(batch.texts, self._encoding)
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits, which raises it
            outcome = error
        self._outcomes.put((batch, outcome))
