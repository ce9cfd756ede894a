"""Search for the longest text that a server reads in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stickytoken.encoders.endpoint._capabilities import Long
from stickytoken.encoders.endpoint._request import Reply
from stickytoken.unit_vectors import exact_unit_vectors

_FIRST = 64
_FIRST_OF_NOISY = 8
_LAST = 2048
_WORD = "the"
_ENDS = ("river", "stone")
# Vectors of different texts are further apart than rounding.
_ROUNDING = 5e-5
# With noise, texts differ in as many words as they share, and must be this many times further
# apart than noise.
_ABOVE_NOISE = 3.0


class Lengths(NamedTuple):
    """How long texts may be.

    Attributes:
        max_length: longest text in tokens; None if it is unknown.
        long: what happens to a longer one.
    """

    max_length: int | None
    long: Long

    @classmethod
    def given(cls, max_length: int) -> Lengths:
        """What the user says."""
        return cls(max_length, Long.UNKNOWN)


class LengthSearch:
    """Sends pairs of texts that differ at their ends only: equal vectors mean that the ends were not read.

    Args:
        answers: sends texts; None if the server refuses them.
        count: counts the tokens of texts.
        noise: distance of two unit vectors of one text.
    """

    def __init__(
        self,
        answers: Callable[[Sequence[str]], Reply | None],
        count: Callable[[Sequence[str]], list[int]],
        noise: float,
    ) -> None:
        self._answers = answers
        self._count = count
        self._noise = noise
        self._refused = False

    def found(self) -> Lengths:
        """Double the length until the end of a text is not read, then close in on the limit."""
        low, high = 1, _FIRST if self._exact else _FIRST_OF_NOISY
        while high <= _LAST and self._read_whole(high):
            low, high = high, 2 * high
        if high > _LAST:
            return Lengths(self._tokens(low), Long.UNKNOWN)
        while high - low > 1:
            middle = (low + high) // 2
            if self._read_whole(middle):
                low = middle
            else:
                high = middle
        return Lengths(self._tokens(low), Long.REFUSES if self._refused else Long.TRUNCATES)

    @property
    def _exact(self) -> bool:
        """Whether one word at the end of a long text stands out from the noise."""
        return self._noise < _ROUNDING

    def _read_whole(self, words: int) -> bool:
        reply = self._answers(self._pair(words))
        if reply is None:
            self._refused = True
            return False
        first, second = exact_unit_vectors(reply.vectors)
        limit = _ROUNDING if self._exact else _ABOVE_NOISE * self._noise
        return float(np.linalg.norm(first - second)) > limit

    def _pair(self, words: int) -> list[str]:
        ends = 1 if self._exact else words
        return [" ".join([*[_WORD] * words, *[end] * ends]) for end in _ENDS]

    def _tokens(self, words: int) -> int:
        """Count the tokens of the longest text that was read whole; of noisy ones, only what both share."""
        texts = self._pair(words) if self._exact else [" ".join([_WORD] * words)]
        return min(self._count(texts))
