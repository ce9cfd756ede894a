"""How many requests to keep in flight. Pure: time is passed in."""

from __future__ import annotations

_FIRST = 2
_MOST = 32
# More requests in flight must bring this many times the throughput to be worth it.
_WORTH = 1.08
# Refusals within so many seconds are of the same burst.
_TOGETHER = 1.0
# Windows of answers after which more requests are tried again.
_HELD = 20


class Concurrency:
    """Doubles the requests in flight while that brings more texts per second, and halves them when refused.

    Attributes:
        limit: how many requests may be in flight now.
    """

    def __init__(self) -> None:
        self.limit = _FIRST
        self._best = (0.0, _FIRST)
        self._held = 0
        self._window: list[int] = []
        self._since: float | None = None
        self._refused_at: float | None = None

    def answered(self, texts: int, now: float) -> None:
        """Note an answered request.

        Args:
            texts: number of its texts.
            now: seconds of a monotonic clock.
        """
        if self._since is None:  # the first answer opens the window: what came before it is a start
            self._since = now
            return
        self._window.append(texts)
        if len(self._window) < 2 * self.limit or now <= self._since:
            return
        speed = sum(self._window) / (now - self._since)
        self._window, self._since = [], now
        self._judge(speed)

    def refused(self, now: float) -> None:
        """Note that the server asked for fewer requests; those that it refuses together count once.

        Args:
            now: seconds of a monotonic clock.
        """
        if self._refused_at is not None and now - self._refused_at < _TOGETHER:
            return
        self._refused_at = now
        self.limit = max(1, self.limit // 2)
        self._best = (0.0, self.limit)
        self._held, self._window, self._since = _HELD, [], None

    def _judge(self, speed: float) -> None:
        if self._held:
            self._held -= 1
            return
        best, limit = self._best
        if speed > _WORTH * best:
            self._best = (speed, self.limit)
            self.limit = min(_MOST, 2 * self.limit)
        else:
            self.limit, self._held = limit, _HELD
            self._best = (0.0, limit)  # measured anew after the pause: servers slow down and speed up
