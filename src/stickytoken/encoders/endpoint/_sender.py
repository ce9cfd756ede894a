"""Send requests in parallel until all are answered: retries, waiting, and giving up."""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stickytoken.encoders.endpoint._rate import Concurrency
from stickytoken.encoders.endpoint._recipient import Recipient
from stickytoken.encoders.endpoint._request import (
    Encoding,
    Failure,
    RefusedError,
    Reply,
    Requester,
    TemporaryError,
    WebPageError,
)
from stickytoken.errors import ModelError, StickyTokenError

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
# After an interrupt or an error, answers that are on their way are paid for: wait for them a little.
_GRACE = 5.0
_POLL = 0.2
_TOO_MANY = frozenset({429, 503})
_WRONG_KEY = frozenset({401, 403})
_NOT_FOUND = frozenset({404, 405})
_NO_CREDIT = frozenset({402})
_FINAL = _WRONG_KEY | _NOT_FOUND | _NO_CREDIT

Outcome = Reply | Exception


@dataclass(order=True)
class _Batch:
    """A request and what has happened to it.

    Attributes:
        due: when it may be sent, on the monotonic clock.
        number: keeps the order among those that are due.
        texts: its texts.
        reserved: tokens that it may cost.
        attempts: how often it failed.
        failing_since: when it first failed.
    """

    due: float
    number: int
    texts: Sequence[str] = field(compare=False)
    reserved: float = field(default=0.0, compare=False)
    attempts: int = field(default=0, compare=False)
    failing_since: float | None = field(default=None, compare=False)


class Sender:
    """Sends requests and hands over every answer as it comes.

    Args:
        requester: sends one request.
        name: name of the model, for messages.
        patience: seconds for which a request may fail before everything ends.
        waits: called with the reason and the seconds of a long pause.
    """

    def __init__(
        self,
        requester: Requester,
        name: str,
        patience: float,
        waits: Callable[[str, float], None] | None = None,
    ) -> None:
        self._requester = requester
        self._name = name
        self._patience = patience
        self._waits = waits or (lambda reason, seconds: None)
        self._rate = Concurrency()
        self._pauses = random.SystemRandom()
        self._numbers = itertools.count()

    def send_all(self, batches: Sequence[Sequence[str]], encoding: Encoding, recipient: Recipient) -> None:
        """Send all requests.

        Args:
            batches: texts of each request.
            encoding: form of the vectors.
            recipient: allows each request, and takes what becomes of it.

        Raises:
            ModelError: the server refuses the key, the model or the URL, or stays out of reach.
        """
        work = _Work(self._requester, encoding, recipient)
        ready = deque(_Batch(0.0, next(self._numbers), texts) for texts in batches)
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
        if outcome.status in _TOO_MANY or outcome.failure is Failure.LATE:
            self._rate.refused(now)
        batch.attempts += 1
        batch.failing_since = batch.failing_since or now
        pause = self._pause(batch.attempts, outcome.wait)
        if now + pause - batch.failing_since > self._patience:
            raise self._given_up(batch, outcome)
        if pause >= 1:
            self._waits(str(outcome), pause)
        if outcome.failure is Failure.LATE and len(batch.texts) > 1:  # fewer texts are answered sooner
            ready.extendleft(self._halves(batch))
            return
        if outcome.status in _TOO_MANY:  # what else waits would be refused as well
            for other in (*ready, *later):
                other.due = max(other.due, now + pause)
            later.extend(ready)
            ready.clear()
        batch.due = now + pause
        later.append(batch)
        heapq.heapify(later)

    def _pause(self, attempts: int, asked: float | None) -> float:
        """Choose a pause: what the server asks for and a little more, or else ever longer ones at random."""
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempts, 10))
        if asked is not None:
            return asked + self._pauses.uniform(0.0, 0.1 * min(asked, most) + 0.01)
        return self._pauses.uniform(most / 2, most)

    def _take_apart(
        self, batch: _Batch, refusing: RefusedError, ready: deque[_Batch], recipient: Recipient
    ) -> None:
        """Send a refused request in halves, until it is a single text that the server does not take."""
        if refusing.status in _FINAL:
            raise refusal(self._name, refusing)
        if len(batch.texts) > 1:
            ready.extendleft(self._halves(batch))
        elif not recipient.refused(batch.texts[0], str(refusing)):
            raise refusal(self._name, refusing)

    def _halves(self, batch: _Batch) -> list[_Batch]:
        middle = len(batch.texts) // 2
        return [
            replace(batch, due=0.0, number=next(self._numbers), texts=texts)
            for texts in (batch.texts[middle:], batch.texts[:middle])
        ]

    def _given_up(self, batch: _Batch, last: TemporaryError) -> StickyTokenError:
        if batch.attempts == 1 and last.wait is not None:
            why = f"asks to wait for {last.wait:,.0f} s, longer than the {self._patience:,.0f} s allowed"
        else:
            why = f"gave no usable answer in {batch.attempts} attempts over {self._patience:,.0f} s"
        return ModelError(
            f"{self._name} {why} ({last}): check the server; its answers are kept, and the same command "
            "continues from there"
        )


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
        except WebPageError:  # of a server in maintenance
            outcome = TemporaryError("a web page instead of an answer", Failure.REFUSED)
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits, which raises it
            outcome = error
        self._outcomes.put((batch, outcome))


def refusal(name: str, refused: RefusedError) -> ModelError:
    """Say what to do about a request that the server will never answer."""
    if refused.status in _WRONG_KEY:
        return ModelError(f"{name}: the server refuses the key ({refused}): set the right one")
    if refused.status in _NO_CREDIT:
        return ModelError(
            f"{name}: the account has no credit left ({refused}): add some; earlier answers are kept, and "
            "the same command continues from there"
        )
    if refused.status in _NOT_FOUND:
        return ModelError(
            f"{name}: the server knows no such model or path ({refused}): check the name of the model, and "
            "the URL, which usually ends in /v1"
        )
    return ModelError(f"{name}: the server refuses the request ({refused}): check the model and the options")


def not_an_api(name: str) -> ModelError:
    """Say what to do about a web page instead of an answer."""
    return ModelError(
        f"{name}: a web page answers there, not an API: check the URL, which usually ends in /v1"
    )
