"""Send batches of texts in parallel. If the server fails on one text, the other texts still get vectors."""

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
    request_formats,
)
from stickytoken.encoders.text_encoder import SENTINELS
from stickytoken.errors import ModelError

# Number of requests in flight: enough to hide most of the latency, and few enough for small servers.
_PARALLEL_REQUESTS = 4
# Seconds to wait, after an interrupt or an error, for answers to requests in flight, which are paid for.
_GRACE_SECONDS = 5.0
# Seconds between the main thread's checks for failed worker threads.
_POLL_SECONDS = 0.2

# The control text is one of the fixed texts, which the server has answered before. The control text is sent
# after a failure, to find out whether the server still works.
_CONTROL = SENTINELS[1:2]
# A batch is split after this many failures, if the server answers other texts. A busy server refuses requests
# at random, so it gets more attempts. Half a batch gets fewer attempts, because it probably contains the text
# on which the server fails.
_FAILURES_OF_BATCH = 2
_FAILURES_OF_BUSY_BATCH = 6
_FAILURES_OF_HALF = 1
_FAILURES_OF_BUSY_HALF = 3
# A single text is given up after this many failures, if the server answered the control text right after
# _CONTROLS_OF_TEXT of these failures. With 30% random failures, one text in 1,000 would be given up wrongly.
_FAILURES_OF_TEXT = 3
_FAILURES_OF_BUSY_TEXT = 6
_CONTROLS_OF_TEXT = 2
# Once this many texts have been given up for the same reason, waiting is pointless, so retries are sent at
# once.
_TEXTS_OF_A_REASON = 3

Vectors = Mapping[str, NDArray[np.float32]]


class _StoppedError(Exception):
    """The thread must end, because another request failed or the user interrupted the command."""


class _ControlResult(Enum):
    """How the server responded to the control text."""

    ANSWERED = auto()  # with a vector
    FAILED = auto()  # temporarily, so a retry may succeed
    REFUSED = auto()  # in every request format
    OTHER_FORMAT = auto()  # refused in the request format used so far, but answered in a different one


@dataclass(eq=False)
class _Request:
    """The texts of one request, and the history of the request's failures.

    Attributes:
        texts: texts that still need a vector.
        attempts: counter of the failures, which decides when to retry.
        is_half: whether these texts are part of a batch that failed while the server answered other texts.
        one_attempt: whether to give up after one failure, because the text failed in an earlier session.
        failures: number of failed attempts.
        controls: number of failed attempts that were each followed by an answer to the control text.
        failed_since: time of the first failure, on the monotonic clock; None before the first failure.
    """

    texts: tuple[str, ...]
    attempts: Attempts
    is_half: bool = False
    one_attempt: bool = False
    failures: int = 0
    controls: int = 0
    failed_since: float | None = None

    def halves(self, patience: float) -> list[_Request]:
        """Return two requests with half of the texts each.

        Args:
            patience: how long each half may be retried, in seconds.
        """
        middle = len(self.texts) // 2
        return [
            _Request(texts, Attempts(patience), is_half=True, failed_since=self.failed_since)
            for texts in (self.texts[:middle], self.texts[middle:])
        ]


@dataclass(eq=False)
class Sender:
    """Sends batches through a client, with retries.

    Attributes:
        client: sends one request.
        expected_tokens: function that returns the number of tokens that the server will probably count for
            texts.
        counts_tokens: whether the server reports the number of tokens.
        keep: called with the vectors of each response, keyed by text; may be called from several threads.
        without_vector: called with a text that the server does not embed, and the reason; if None, an error
            is raised for such a text.
        waits: called before a pause of at least a second, with the reason and the length in seconds.
    """

    client: Client
    expected_tokens: Callable[[Sequence[str]], float]
    counts_tokens: bool
    keep: Callable[[Vectors], None]
    without_vector: Callable[[str, str], None] | None = None
    waits: Callable[[str, float], None] = lambda reason, seconds: None
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)
    # Only one thread at a time may use a tokenizer.
    _tokenizing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def send_all(self, batches: Sequence[Sequence[str]], *, one_attempt: bool = False) -> None:
        """Send batches in parallel, and pass their vectors to `keep`.

        Args:
            batches: texts of each request.
            one_attempt: whether to give up each text after one failure, because the text failed in an earlier
                session.

        Raises:
            ModelError: the server returns no vector at all, or refuses a text and `without_vector` is None.
            RunError: the spending limit could be exceeded.
        """
        waiting = iter(batches)
        failures: list[Exception] = []

        def work() -> None:
            """Send batches until none is waiting. An error is stored in `failures` and stops all threads."""
            try:
                while not self._stopped.is_set():
                    batch = next(waiting, None)  # a list's iterator may be shared between threads
                    if batch is None:
                        return
                    self._send_until_answered(batch, one_attempt)
            except _StoppedError:
                return
            except Exception as error:  # noqa: BLE001 - raised again in the main thread
                failures.append(error)
                self._stopped.set()

        # A ThreadPoolExecutor would join its threads when Python exits, so Ctrl-C would wait for a server
        # that hangs.
        threads = [
            threading.Thread(target=work, name="endpoint", daemon=True)
            for _ in range(min(_PARALLEL_REQUESTS, len(batches)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not self._stopped.is_set():
                    thread.join(_POLL_SECONDS)
        finally:
            self._stopped.set()
            end = time.monotonic() + _GRACE_SECONDS
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        if failures:
            raise failures[0]
        self._stopped.clear()  # all threads have ended, so the sender can be used again

    def _send_until_answered(self, batch: Sequence[str], one_attempt: bool) -> None:
        """Send the texts of a batch until each text either has a vector or has been given up."""
        first_request = _Request(
            tuple(batch), Attempts(self.client.options.patience), one_attempt=one_attempt
        )
        requests = [first_request]
        while requests:
            request = requests.pop()
            requests.extend(reversed(self._attempt(request)))

    def _attempt(self, request: _Request) -> list[_Request]:
        """Send a request once, pass the vectors to `keep`, and return the requests to send next.

        Returns:
            An empty list if every text of the request has a vector or has been given up. If some texts still
            need a vector, either the same request, reduced to these texts, or two requests with half of these
            texts each; see `_after_refusal` and `_after_failure`.
        """
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
            # The server answered the other texts of the batch, so the fault is probably in the bad texts.
            # Like half of a batch that failed, the bad texts therefore get fewer attempts.
            request.is_half = True
        request.texts = tuple(bad_texts)
        return self._after_failure(request, TemporaryError(reason, Failure.UNUSABLE))

    def _send(self, texts: Sequence[str]) -> Reply:
        """Reserve the expected tokens of the texts, and send the texts in one request."""
        with self._tokenizing:
            reserved = self.expected_tokens(texts)
        return self.client.request(texts, reserved, counts_tokens=self.counts_tokens)

    def _after_refusal(self, request: _Request, error: RefusedError) -> list[_Request]:
        """Split a refused request or give up its only text.

        Returns:
            The requests to send next: the same request if the request format was at fault and has been
            changed, otherwise its two halves, or nothing if its only text was given up.

        Raises:
            ModelError: the server refuses every text, for example because the key is wrong.
        """
        if request.failed_since is None:
            request.failed_since = time.monotonic()
        has_several_texts = len(request.texts) > 1
        suggests_wrong_access = error.access_error is not None
        # The control text shows whether the server refuses every text. It is sent at once if the HTTP status
        # suggests a wrong key or model name. Otherwise, a refused batch is split first, and the control text
        # is sent only once a text has been refused on its own.
        if suggests_wrong_access or not has_several_texts:
            # Any answer since the first failure shows that the server does not refuse every text.
            control = self._control_result_since(request.failed_since)
            if control is _ControlResult.OTHER_FORMAT:
                return [request]
            if _refuses_every_text(control, suggests_wrong_access=suggests_wrong_access):
                raise error.access_error or self.client.refused(error)
        if has_several_texts:
            return request.halves(self.client.options.patience)
        self._give_up(request, str(error))
        return []

    def _after_failure(self, request: _Request, error: TemporaryError) -> list[_Request]:
        """Decide what to do after a temporary failure of a request.

        If the texts of the request are at fault, the request is split, or its only text is given up. If the
        server is at fault, wait before the same request is sent again.

        Returns:
            The requests to send next: the same request, its two halves, or nothing if its only text was given
            up.

        Raises:
            ModelError: the request has failed for longer than the `patience` option allows.
        """
        now = time.monotonic()
        request.failures += 1
        if request.failed_since is None:
            request.failed_since = now
        has_several_texts = len(request.texts) > 1
        if has_several_texts and error.failure is Failure.LATE:
            # The answer took too long. Half of the texts take half as long.
            return request.halves(self.client.options.patience)
        pause = request.attempts.pause_after(error, now)
        if self._texts_are_at_fault(request, error, is_last_attempt=pause is None):
            if has_several_texts:
                return request.halves(self.client.options.patience)
            self._give_up(request, str(error))
            return []
        if pause is None:  # the `patience` option allows no further attempt
            reason = request.attempts.why_given_up(error)
            raise ModelError(f"{self.client.address.name} {reason}: check the server, or try later; {KEPT}")
        self._wait_for_retry(error, pause)
        return [request]

    def _wait_for_retry(self, error: TemporaryError, pause: float) -> None:
        """Wait before a failed request is sent again. If the server is overloaded, hold back all requests.

        If several texts have been given up for the reason of this failure, waiting will probably not help, so
        the retry is sent at once, unless the server asked for a wait.

        Args:
            error: the failure.
            pause: number of seconds to wait.
        """
        if error.wait is None and self.client.given_up_by_reason[str(error)] >= _TEXTS_OF_A_REASON:
            pause = 0.0
        if pause >= 1:
            self.waits(str(error), pause)
        if error.too_many:
            self.client.held_until = max(self.client.held_until, time.monotonic() + pause)
        self._pause(pause)

    def _texts_are_at_fault(self, request: _Request, error: TemporaryError, *, is_last_attempt: bool) -> bool:
        """Judge whether a request fails because of its texts, rather than because the server is down or busy.

        May send the control text. If the server answers the control text after the failure of a single text,
        ``request.controls`` is increased by 1.

        The texts are taken to be at fault if the request has failed `_failures_before_control` times although
        the server answers other texts. For several texts, an answer to any other request since the first
        failure is enough. A single text is taken to be at fault only if the server answered the control text
        right after _CONTROLS_OF_TEXT failures. The text of a request with ``one_attempt`` is taken to be at
        fault after the first failure, and no control text is sent. If the server cannot be reached, texts are
        never at fault.

        Args:
            request: the request that failed.
            error: the last failure of the request.
            is_last_attempt: whether no further attempt is allowed, in which case one failure and one answer
                to the control text are enough evidence.

        Returns:
            Whether the texts are taken to be at fault.
        """
        if error.failure is Failure.UNREACHED:
            return False
        if request.one_attempt:  # the text failed in an earlier session too
            return True
        has_enough_failures = request.failures >= _failures_before_control(request, error.busy)
        if not has_enough_failures and not is_last_attempt:
            return False
        if len(request.texts) > 1:
            # A batch that is wrongly taken to be at fault is only split needlessly, so one answer is enough
            # evidence.
            return self._control_result_since(request.failed_since or 0.0) is _ControlResult.ANSWERED
        # A single text that is wrongly taken to be at fault is left without a vector, so more evidence is
        # needed than for a batch.
        if self._send_control() is not _ControlResult.ANSWERED:
            return False
        request.controls += 1
        return is_last_attempt or request.controls >= _CONTROLS_OF_TEXT

    def _control_result_since(self, since: float) -> _ControlResult:
        """Return how the server responds to the control text.

        If the server has answered any request after `since`, the control text is not sent, and the result is
        ANSWERED.

        Args:
            since: time of a failure, on the monotonic clock.
        """
        if self.client.last_answer > since:
            return _ControlResult.ANSWERED
        return self._send_control()

    def _send_control(self) -> _ControlResult:
        """Send the control text, in every request format if necessary; return how the server responded."""
        try:
            self._send(_CONTROL)
        except TemporaryError:
            return _ControlResult.FAILED
        except RefusedError:
            return self._send_control_in_other_formats()
        return _ControlResult.ANSWERED

    def _send_control_in_other_formats(self) -> _ControlResult:
        """Send the control text in the other request formats; let the client keep the first that works.

        Return OTHER_FORMAT if one of the formats works, and REFUSED otherwise.
        """
        refused_format = self.client.request_format
        for request_format in request_formats(self.client.options.dimensions):
            if request_format == refused_format:
                continue
            self.client.request_format = request_format
            try:
                self._send(_CONTROL)
            except (RefusedError, TemporaryError):
                continue
            return _ControlResult.OTHER_FORMAT
        self.client.request_format = refused_format
        return _ControlResult.REFUSED

    def _give_up(self, request: _Request, reason: str) -> None:
        """Report that the server does not embed the only text of a request.

        Raises:
            ModelError: `without_vector` is None.
        """
        if self.without_vector is None:
            raise self.client.refused(reason)
        self.client.given_up_by_reason[reason] += 1
        self.without_vector(request.texts[0], reason)

    def _pause(self, seconds: float) -> None:
        """Wait for this number of seconds, or longer if the client is holding back all requests.

        Raises:
            _StoppedError: another request failed, or the user interrupted the command.
        """
        until = time.monotonic() + seconds
        while True:
            remaining = max(until, self.client.held_until) - time.monotonic()
            if remaining > 0:
                self._stopped.wait(remaining)
            if self._stopped.is_set():
                raise _StoppedError
            if remaining <= 0:
                return


def _failures_before_control(request: _Request, busy: bool) -> int:
    """Return how many times a request must fail before the control text is sent."""
    if len(request.texts) == 1:
        return _FAILURES_OF_BUSY_TEXT if busy else _FAILURES_OF_TEXT
    if request.is_half:
        return _FAILURES_OF_BUSY_HALF if busy else _FAILURES_OF_HALF
    return _FAILURES_OF_BUSY_BATCH if busy else _FAILURES_OF_BATCH


def _refuses_every_text(control: _ControlResult, *, suggests_wrong_access: bool) -> bool:
    """Judge whether a server that refused a text refuses every other text too.

    An answer to the control text shows that it does not, and a refusal of the control text shows that it
    does. If the control text failed only temporarily, nothing is known about other texts, so the HTTP status
    of the refused text decides.

    Args:
        control: how the server responded to the control text; not OTHER_FORMAT.
        suggests_wrong_access: whether the HTTP status of the refused text suggests a wrong key or model name.
    """
    if control is _ControlResult.FAILED:
        return suggests_wrong_access
    return control is _ControlResult.REFUSED
