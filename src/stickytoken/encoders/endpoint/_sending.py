"""Send batches of texts in parallel. If the server fails on one text, the other texts still get vectors."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._client import (
    ATTEMPTS,
    HOW_TO_CONTINUE,
    Client,
    Failure,
    RefusedError,
    Reply,
    TemporaryError,
)
from stickytoken.encoders.text_encoder import SENTINELS
from stickytoken.errors import ModelError

# Number of requests in flight: enough to hide most of the latency, and few enough for small servers.
_PARALLEL_REQUESTS = 4
# Seconds to wait, after an interrupt or an error, for answers to requests in flight, which are paid for.
_GRACE_SECONDS = 5.0
# Seconds between the main thread's checks for failed worker threads.
_POLL_SECONDS = 0.2
# The control text is one of the fixed texts, which the server has answered before. It is sent after a
# failure, to find out whether the server still works.
_CONTROL_TEXTS = SENTINELS[1:2]
# A text that fails alone although the server answers others is sent this often before it is given up.
_REQUESTS_OF_TEXT = 2

Vectors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """Texts without a vector.

    Attributes:
        texts: the texts.
        reason: what the server said, or what is wrong with its answer.
        may_be_too_many: whether the server may take these texts in smaller requests.
    """

    texts: tuple[str, ...]
    reason: str
    may_be_too_many: bool


@dataclass(eq=False)
class Sender:
    """Sends batches through a client. A batch that fails is divided until the texts at fault are found.

    Attributes:
        client: sends one request.
        expected_tokens: function that returns the number of tokens that the server will probably count for
            texts.
        counts_tokens: whether the server reports the number of tokens.
        keep: called with the vectors of each response, keyed by text; may be called from several threads.
        without_vector: called with a text that the server does not embed, and the reason.
    """

    client: Client
    expected_tokens: Callable[[Sequence[str]], float]
    counts_tokens: bool
    keep: Callable[[Vectors], None]
    without_vector: Callable[[str, str], None]
    # Only one thread at a time may use a tokenizer.
    _tokenizing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def send_all(self, batches: Sequence[Sequence[str]], *, one_attempt: bool = False) -> None:
        """Send batches in parallel, and pass their vectors to `keep`.

        Args:
            batches: texts of each request.
            one_attempt: whether to send each text only once, because it failed in an earlier session.

        Raises:
            ModelError: the server returns no vector at all.
            RunError: the spending limit could be exceeded.
        """
        waiting = iter(batches)
        failures: list[Exception] = []
        stopped = self.client.stopped

        def work() -> None:
            """Send batches until none is waiting, each text once if `one_attempt`, or else with retries.

            An error is stored in `failures` and stops all threads.
            """
            try:
                while not stopped.is_set():
                    batch = next(waiting, None)  # a list's iterator may be shared between threads
                    if batch is None:
                        return
                    self._send_and_divide_on_failure(batch, one_attempt=one_attempt)
            except Exception as error:  # noqa: BLE001 - raised again in the main thread
                failures.append(error)
                stopped.set()

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
                while thread.is_alive() and not stopped.is_set():
                    thread.join(_POLL_SECONDS)
        finally:
            # After an interrupt or an error, this ends all pauses and retries. Answers to requests in flight
            # are paid for, so the threads get some seconds to receive them.
            stopped.set()
            end = time.monotonic() + _GRACE_SECONDS
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        stopped.clear()  # the client can be used again
        if failures:
            raise failures[0]

    def _send_and_divide_on_failure(self, batch: Sequence[str], *, one_attempt: bool) -> None:
        """Send the texts of a batch, in smaller requests if it fails, until each has a vector or is given up.

        If the server takes all texts of a refused batch once it is divided, it refused only their number, so
        later batches are divided from the start.
        """
        size = self.client.most_texts
        in_order = [tuple(batch[start : start + size]) for start in range(0, len(batch), size)]
        waiting = in_order[::-1]  # a stack, whose last element is sent first
        times_failed_alone: Counter[str] = Counter()
        most_answered = 0  # largest number of texts that the server took in one request
        may_be_too_many = False
        while waiting:
            texts = waiting.pop()
            unanswered = self._send_and_keep(texts, attempts=1 if one_attempt else ATTEMPTS)
            if self.client.stopped.is_set():
                return
            if unanswered is None:
                most_answered = max(most_answered, len(texts))
            elif len(unanswered.texts) > 1:
                may_be_too_many = may_be_too_many or unanswered.may_be_too_many
                middle = len(unanswered.texts) // 2
                waiting += [unanswered.texts[middle:], unanswered.texts[:middle]]
            else:
                (text,) = unanswered.texts
                times_failed_alone[text] += 1
                if times_failed_alone[text] < _REQUESTS_OF_TEXT and not one_attempt:
                    waiting.append(unanswered.texts)
                    continue
                self.without_vector(text, unanswered.reason)
                most_answered = size  # this text was at fault, not the number of texts
        if may_be_too_many:
            self.client.most_texts = min(self.client.most_texts, max(1, most_answered))

    def _send_and_keep(self, texts: tuple[str, ...], attempts: int) -> _Unanswered | None:
        """Send texts in one request, and keep their vectors.

        Returns:
            The texts that got no vector; None if every text got one.

        Raises:
            ModelError: the server gives no vectors at all.
        """
        started = time.monotonic()
        try:
            reply = self._send(texts, attempts)
        except RefusedError as error:
            # A refusal of several texts may be due to a single text or to their number, so the texts are
            # divided before the server is suspected.
            if len(texts) == 1 or error.access_error is not None:
                self._require_working_server(started, error.access_error)
            return _Unanswered(texts, str(error), may_be_too_many=True)
        except TemporaryError as error:
            self._require_working_server(started, None)
            return _Unanswered(texts, str(error), may_be_too_many=error.failure is Failure.LATE)
        failed_texts = tuple(texts[position] for position in reply.problems)
        texts_and_vectors = zip(texts, reply.vectors, strict=True)
        self.keep({text: vector for text, vector in texts_and_vectors if text not in failed_texts})
        if not failed_texts:
            return None
        first_problem = next(iter(reply.problems.values()))
        return _Unanswered(failed_texts, first_problem, may_be_too_many=False)

    def _send(self, texts: Sequence[str], attempts: int | None) -> Reply:
        with self._tokenizing:
            reserved = self.expected_tokens(texts)
        return self.client.request(texts, reserved, counts_tokens=self.counts_tokens, attempts=attempts)

    def _require_working_server(self, since: float, access_error: ModelError | None) -> None:
        """Raise an error if the server does not work, so that the texts of a failed request are not to blame.

        ``since`` is when the request was sent. ``access_error`` is the error to raise for it if there is one.
        """
        if self.client.last_answer > since:
            return  # the server has answered another request
        try:
            self._send(_CONTROL_TEXTS, attempts=None)
        except RefusedError as error:
            raise (access_error or error.access_error or self.client.make_refusal_error(error)) from None
        except TemporaryError as error:
            if self.client.stopped.is_set():  # there were no retries: another request failed, or Ctrl-C
                return
            name = self.client.address.name
            raise access_error or ModelError(
                f"{name} gives no usable answer ({error}): check the server, or try later; {HOW_TO_CONTINUE}"
            ) from None
