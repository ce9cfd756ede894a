"""Send a request until it is answered: when to send it again, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stickytoken.encoders.endpoint._request import Encoding, Reply, Requester, TemporaryError
from stickytoken.encoders.endpoint.cost import Spending

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_MOST_DOUBLED = 10


@dataclass
class Attempts:
    """The failed attempts at one request.

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
        """Note a failure, and return the seconds before the next attempt; None to give up.

        Args:
            error: the failure.
            now: seconds of the monotonic clock.
        """
        self.failed += 1
        self._counted += not error.busy
        self._unreached += error.unreachable
        if self.failing_since is None:
            self.failing_since = now
        pause = self._pause(error.wait)
        late = now + pause - self.failing_since > self.patience
        return None if late or self._is_over or isinstance(error, self.final) else pause

    def given_up(self, last: TemporaryError) -> str:
        """Say why there is no further attempt."""
        if self.failed == 1 and last.wait is not None and last.wait > self.patience:
            longer = f"longer than the {self.patience:,.0f} s allowed"
            return f"asks to wait for {last.wait:,.0f} s, {longer} ({last})"
        return f"gave no usable answer in {self.failed} attempts ({last})"

    @property
    def _is_over(self) -> bool:
        """Whether there were too many failures."""
        counts = ((self._counted, self.most), (self._unreached, self.most_unreached))
        return any(most is not None and count >= most for count, most in counts)

    def _pause(self, asked: float | None) -> float:
        """Choose a pause: what the server asks for and a little more, or else ever longer ones at random."""
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
    """Send texts in one request until it is answered; its cost is counted as long as it is not.

    Args:
        requester: sends it.
        texts: the texts.
        encoding: form of the vectors.
        attempts: those that failed.
        spending: told about every attempt.
        reserved: tokens that each may cost.
        rest: called with a failure, and the seconds to wait before the next attempt.
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
