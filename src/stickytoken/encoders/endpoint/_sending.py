"""Send batches of texts, several at a time, so that a text on which the server fails costs no other text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._client import (
    KEPT,
    Attempts,
    Client,
    Failure,
    RefusedError,
    Reply,
    TemporaryError,
    request_forms,
)
from stickytoken.encoders.text_encoder import SENTINELS
from stickytoken.errors import ModelError

# Number of requests in flight: enough to hide most of the waiting, and few enough for small servers.
_AT_ONCE = 4
# Seconds to wait, after an interrupt or an error, for answers that are on their way: they are paid for.
_GRACE = 5.0
# Seconds between two looks of the waiting thread at whether it must end.
_WATCHED_EVERY = 0.2

# A text that the server has answered, because it is one of the fixed texts.
_CONTROL = SENTINELS[1:2]
# A batch is split once it has failed this often and the server answers other texts. Busy servers refuse at
# random, so they get more attempts. The half of a split batch is under suspicion already.
_FAILURES_OF_BATCH = 2
_FAILURES_OF_BUSY_BATCH = 6
_FAILURES_OF_HALF = 1
_FAILURES_OF_BUSY_HALF = 3
# A single text is given up once it has failed this often and the server answers another text right after
# this many of its failures. At 30% of random failures, one text in 1,000 would be given up.
_FAILURES_OF_TEXT = 3
_FAILURES_OF_BUSY_TEXT = 6
_CONTROLS_OF_TEXT = 2
# Once this many texts were given up for a reason, waiting does not help against it: attempts follow at once.
_TEXTS_OF_A_REASON = 3

Vectors = Mapping[str, NDArray[np.float32]]


class _OverError(Exception):
    """Another request failed, or the user interrupted."""


class _Control(Enum):
    """What became of the control text."""

    ANSWERED = auto()
    FAILED = auto()
    REFUSED = auto()
    OTHER_FORM = auto()  # refused in the form used so far, and answered in another one


@dataclass(eq=False)
class _Request:
    """Texts of one request, and how it has fared.

    Attributes:
        texts: the texts.
        attempts: failed attempts, and when to try again.
        is_half: whether it is part of a batch that failed although the server answers other texts.
        once: whether one failure is enough to give up, because the text failed in an earlier session.
        failures: number of failures.
        controls: number of control texts that the server answered right after a failure.
        failed_since: time of the first failure, on the monotonic clock.
    """

    texts: tuple[str, ...]
    attempts: Attempts
    is_half: bool = False
    once: bool = False
    failures: int = 0
    controls: int = 0
    failed_since: float | None = None

    def halves(self, patience: float) -> list[_Request]:
        """Return two requests with half of the texts each."""
        middle = len(self.texts) // 2
        return [
            _Request(texts, Attempts(patience), is_half=True, failed_since=self.failed_since)
            for texts in (self.texts[:middle], self.texts[middle:])
        ]


@dataclass(eq=False)
class Sender:
    """Sends batches through a client.

    Attributes:
        client: the client.
        expected_tokens: what the server will count for texts.
        counts_tokens: whether the server counts tokens.
        keep: called with the vectors of each answer, from several threads.
        without_vector: called with a text that the server does not embed, and why; if it is None, such a text
            raises an error.
        waits: called with the reason and the seconds of a pause of a second or more.
    """

    client: Client
    expected_tokens: Callable[[Sequence[str]], float]
    counts_tokens: bool
    keep: Callable[[Vectors], None]
    without_vector: Callable[[str, str], None] | None = None
    waits: Callable[[str, float], None] = lambda reason, seconds: None
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    # Tokenizers are for one thread at a time.
    _tokenizing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def send_all(self, batches: Sequence[Sequence[str]], *, once: bool = False) -> None:
        """Send batches, several at a time.

        Args:
            batches: texts of each request.
            once: give a text up after one failure, because it failed in an earlier session.

        Raises:
            ModelError: the server answers no text, or refuses one without `without_vector`.
            RunError: the largest sum to spend could be exceeded.
        """
        waiting = iter(batches)
        failures: list[Exception] = []

        def work() -> None:
            try:
                while not self._over.is_set():
                    batch = next(waiting, None)
                    if batch is None:
                        return
                    self._answer(batch, once)
            except _OverError:
                return
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                failures.append(error)
                self._over.set()

        # Not a ThreadPoolExecutor: that joins its threads when Python exits, so that Ctrl-C would wait for a
        # server that hangs.
        threads = [
            threading.Thread(target=work, name="endpoint", daemon=True)
            for _ in range(min(_AT_ONCE, len(batches)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not self._over.is_set():
                    thread.join(_WATCHED_EVERY)
        finally:
            self._over.set()
            end = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        if failures:
            raise failures[0]
        self._over.clear()

    def _answer(self, batch: Sequence[str], once: bool) -> None:
        """Send the requests of a batch until every text has a vector or was given up."""
        requests = [_Request(tuple(batch), Attempts(self.client.options.patience), once=once)]
        while requests:
            request = requests.pop()
            requests.extend(reversed(self._attempt(request)))

    def _attempt(self, request: _Request) -> list[_Request]:
        """Send one request once. Return the requests that are left to send."""
        self._pause(0.0)
        try:
            reply = self._send(request.texts)
        except RefusedError as error:
            return self._after_refusal(request, error)
        except TemporaryError as error:
            return self._after_failure(request, error)
        vectors = dict(zip(request.texts, reply.vectors, strict=True))
        if not reply.problems:
            self.keep(vectors)
            return []
        bad_texts = [request.texts[position] for position in reply.problems]
        self.keep({text: vector for text, vector in vectors.items() if text not in bad_texts})
        reason = next(iter(reply.problems.values()))
        if len(bad_texts) < len(request.texts):
            request.is_half = True  # the server answered the others
        request.texts = tuple(bad_texts)
        return self._after_failure(request, TemporaryError(reason, Failure.UNUSABLE))

    def _send(self, texts: Sequence[str]) -> Reply:
        with self._tokenizing:
            reserved = self.expected_tokens(texts)
        return self.client.request(texts, reserved, counts_tokens=self.counts_tokens)

    def _after_refusal(self, request: _Request, error: RefusedError) -> list[_Request]:
        """Split a request that the server refuses, or give its text up; end if all texts are refused."""
        if request.failed_since is None:
            request.failed_since = time.monotonic()
        if len(request.texts) == 1 or error.for_all is not None:
            control = self._others_answered(request.failed_since)
            if control is _Control.OTHER_FORM:
                return [request]
            if control is _Control.REFUSED or (error.for_all and control is not _Control.ANSWERED):
                raise error.for_all or self.client.refused(error)
        if len(request.texts) > 1:
            return request.halves(self.client.options.patience)
        self._give_up(request, str(error))
        return []

    def _after_failure(self, request: _Request, error: TemporaryError) -> list[_Request]:
        """Wait, split the request, or give its text up."""
        now = time.monotonic()
        request.failures += 1
        if request.failed_since is None:
            request.failed_since = now
        has_several_texts = len(request.texts) > 1
        if has_several_texts and error.failure is Failure.LATE:  # half as many are answered sooner
            return request.halves(self.client.options.patience)
        pause = request.attempts.pause_after(error, now)
        if self._is_about_the_texts(request, error, out_of_patience=pause is None):
            if has_several_texts:
                return request.halves(self.client.options.patience)
            self._give_up(request, str(error))
            return []
        if pause is None:
            reason = request.attempts.why_given_up(error)
            raise ModelError(f"{self.client.address.name} {reason}: check the server, or try later; {KEPT}")
        if error.wait is None and self.client.given_up[str(error)] >= _TEXTS_OF_A_REASON:
            pause = 0.0
        if pause >= 1:
            self.waits(str(error), pause)
        if error.too_many:
            self.client.held_until = max(self.client.held_until, time.monotonic() + pause)
        self._pause(pause)
        return [request]

    def _is_about_the_texts(self, request: _Request, error: TemporaryError, *, out_of_patience: bool) -> bool:
        """Decide whether a failure comes from the texts of a request, because the server answers others."""
        if error.failure is Failure.UNREACHED:
            return False
        if request.once:
            return True
        enough = request.failures >= _failures_before_control(request, error.busy)
        if not enough and not out_of_patience:
            return False
        if len(request.texts) > 1:
            return self._others_answered(request.failed_since or 0.0) is _Control.ANSWERED
        if self._control() is not _Control.ANSWERED:
            return False
        request.controls += 1
        return out_of_patience or request.controls >= _CONTROLS_OF_TEXT

    def _others_answered(self, since: float) -> _Control:
        """Return whether the server has answered a text since a failure; if none, send the control text."""
        if self.client.last_answer > since:
            return _Control.ANSWERED
        return self._control()

    def _control(self) -> _Control:
        """Send a text that the server has answered before, with other optional fields if it is refused."""
        try:
            self._send(_CONTROL)
        except TemporaryError:
            return _Control.FAILED
        except RefusedError:
            return self._control_in_other_forms()
        return _Control.ANSWERED

    def _control_in_other_forms(self) -> _Control:
        """Send the control text in other forms; the client keeps the one that is answered."""
        refused_form = self.client.form
        for form in request_forms(self.client.options.dimensions):
            if form == refused_form:
                continue
            self.client.form = form
            try:
                self._send(_CONTROL)
            except (RefusedError, TemporaryError):
                continue
            return _Control.OTHER_FORM
        self.client.form = refused_form
        return _Control.REFUSED

    def _give_up(self, request: _Request, reason: str) -> None:
        """Report the only text of a request as one that the server does not embed."""
        if self.without_vector is None:
            raise self.client.refused(reason)
        self.client.given_up[reason] += 1
        self.without_vector(request.texts[0], reason)

    def _pause(self, seconds: float) -> None:
        """Wait for some seconds, and as long as the server is too busy for all requests.

        Raises:
            _OverError: everything must end.
        """
        until = time.monotonic() + seconds
        while True:
            remaining = max(until, self.client.held_until) - time.monotonic()
            if remaining > 0:
                self._over.wait(remaining)
            if self._over.is_set():
                raise _OverError
            if remaining <= 0:
                return


def _failures_before_control(request: _Request, busy: bool) -> int:
    """Return after how many failures of a request the control text is sent."""
    if len(request.texts) == 1:
        return _FAILURES_OF_BUSY_TEXT if busy else _FAILURES_OF_TEXT
    if request.is_half:
        return _FAILURES_OF_BUSY_HALF if busy else _FAILURES_OF_HALF
    return _FAILURES_OF_BUSY_BATCH if busy else _FAILURES_OF_BATCH
