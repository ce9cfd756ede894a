"""When to send a request again that got no usable answer, and when to give up."""

from __future__ import annotations

import random
from dataclasses import dataclass

from stickytoken.encoders.endpoint._request import TemporaryError

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
        failed: number of failures.
        failing_since: when it first failed, on the monotonic clock.
    """

    patience: float
    most: int | None = None
    most_unreached: int | None = None
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
        return None if late or self._is_over else pause

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
