"""Find stretches of a text in which a word or phrase is repeated, from the keys of its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_LONGEST_PHRASE = 16
_MOST_BETWEEN = 3
_FEW_WORDS = 3
MIXED_RUN = 16
"""So many units of three different words in a row are a run in whatever order; fewer may be natural."""


class Stretch(NamedTuple):
    """Units from ``first`` up to ``last``, excluding the latter.

    Attributes:
        first: The first unit.
        last: The unit behind the last one.
        period: How many units one copy takes; 0 for a few words in no fixed order.
    """

    first: int
    last: int
    period: int


def positions_of(keys: Sequence[str]) -> dict[str, list[int]]:
    """Return the places of each key."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        if key in places:
            places[key].append(place)
        else:
            places[key] = [place]
    return places


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    """Find the stretches in which a word or phrase is repeated at least ``copies`` times.

    A phrase of up to 16 words counts where nothing else stands between its copies. A word also counts where
    at most two other words stand between its copies, again and again, in any order.

    Args:
        keys: Keys of the units.
        positions: Places of every key that occurs at least ``copies`` times.
        copies: How often makes a stretch, at least 2.

    Returns:
        Stretches in order, which do not overlap.
    """
    gaps = copies - 1
    regular: list[Stretch] = []
    mixed: list[Stretch] = []
    for places in positions.values():
        done = mixed_done = 0
        for first, last in zip(places, places[gaps:], strict=False):
            if first < done or last - first > gaps * _LONGEST_PHRASE:
                continue
            period, rest = divmod(last - first, gaps)
            if not rest and keys[first : last - period] == keys[first + period : last]:
                regular.append(_lengthened(keys, first, last, period))
                done = regular[-1].last
            elif first >= mixed_done and last - first <= gaps * (1 + _MOST_BETWEEN):
                words = set(keys[first : last + 1])
                if len(words) <= _FEW_WORDS:
                    mixed.append(_widened(keys, first, last + 1, words))
                    mixed_done = mixed[-1].last
    return _apart(regular, mixed, len(keys))


def _lengthened(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    """Extend a repeated phrase as far as it goes on."""
    step = 1
    while step:
        if keys[last : last + step] == keys[last - period : last - period + step]:
            last, step = last + step, 2 * step
        else:
            step //= 2
    step = 1
    while step:
        if step <= first and keys[first - step : first] == keys[first - step + period : first + period]:
            first, step = first - step, 2 * step
        else:
            step //= 2
    return Stretch(first, last, period)


def _widened(keys: Sequence[str], first: int, last: int, words: set[str]) -> Stretch:
    """Extend a stretch as far as it has no other words."""
    while first > 0 and keys[first - 1] in words:
        first -= 1
    while last < len(keys) and keys[last] in words:
        last += 1
    return Stretch(first, last, 0)


def _apart(regular: list[Stretch], mixed: list[Stretch], units: int) -> list[Stretch]:
    """Sort stretches without those that overlap another: earlier ones go first, then longer ones."""
    long = [each for each in mixed if each.last - each.first >= MIXED_RUN]
    taken = bytearray(units)
    kept = []
    for stretch in (*_in_order(long), *_in_order(regular), *_in_order(mixed)):
        if taken.find(1, stretch.first, stretch.last) < 0:
            taken[stretch.first : stretch.last] = b"\1" * (stretch.last - stretch.first)
            kept.append(stretch)
    return sorted(kept)


def _in_order(stretches: list[Stretch]) -> list[Stretch]:
    return sorted(stretches, key=lambda each: (each.first, -each.last))
