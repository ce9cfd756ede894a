"""Compare the tokens that a server counts with those of a tokenizer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

# Counts of one tokenizer differ by special tokens alone, which cancel out. Those of BERT, RoBERTa, T5, XLM-R
# and Gemma differ by four and more on the texts of the discovery.
_MOST = 2


class Usage(NamedTuple):
    """What a server counts.

    Attributes:
        counts_tokens: whether it counts tokens.
        overhead: what it counts for each text beside its tokens.
        tokens_per_unit: what it counts for each token that is counted here.
        mismatch: tokens by which two requests differ here and on the server, where that cannot be the same
            tokenizer.
    """

    counts_tokens: bool
    overhead: float
    tokens_per_unit: float
    mismatch: tuple[int, int] | None


def usage_of(
    texts: Sequence[Sequence[str]], ours: Sequence[Sequence[int]], theirs: Sequence[int | None]
) -> Usage:
    """Compare two requests with equally many texts.

    Special tokens cancel out in their difference. Some servers count characters, words or nothing.

    Args:
        texts: texts of the two requests.
        ours: tokens of each text.
        theirs: what the server counts for each request.
    """
    first, second = theirs
    unknown = Usage(False, 0.0, 1.0, None)
    if first is None or second is None or first == second:
        return unknown
    difference = second - first
    if difference in [_more(texts, size) for size in (len, _bytes, _words)]:
        return unknown
    own = sum(ours[1]) - sum(ours[0])
    if abs(difference - own) > _MOST:
        return Usage(True, 0.0, second / max(1, sum(ours[1])), (own, difference))
    overhead = ((first - sum(ours[0])) / len(ours[0]) + (second - sum(ours[1])) / len(ours[1])) / 2
    return Usage(True, max(0.0, overhead), 1.0, None)


def _bytes(text: str) -> int:
    return len(text.encode())


def _words(text: str) -> int:
    return len(text.split())


def _more(texts: Sequence[Sequence[str]], size: Callable[[str], int]) -> int:
    return sum(map(size, texts[1])) - sum(map(size, texts[0]))
