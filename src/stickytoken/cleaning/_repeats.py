"""Find stretches of a text in which a word or phrase is repeated, from the keys of its units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_LONGEST_PHRASE = 16
_MOST_BETWEEN = 3
_FEW_WORDS = 3


class Stretch(NamedTuple):
    """Units from ``first`` up to ``last``, excluding the latter.

    Attributes:
        first: The first unit.
        last: The unit behind the last one.
        period: How many units one copy takes.
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

    A word counts as repeated where it stands next to itself, or with few words in between that are repeated
    too; a phrase of up to 16 words counts where nothing else stands between its copies.

    Args:
        keys: Keys of the units.
        positions: Places of every key that occurs at least ``copies`` times.
        copies: How often makes a stretch, at least 2.

    Returns:
        Stretches in order, which do not overlap.
    """
    found: list[Stretch] = []
    for places in positions.values():
        done = -1
        for start in _repeated(keys, places, copies):
            first = places[start]
            if first < done:
                continue
            stretch = _widened(keys, first, places[start + copies - 1] + 1)
            if stretch.last - stretch.first > (copies - 1) * stretch.period:
                done = stretch.last
                found.append(stretch)
    return _apart(found)


def _repeated(keys: Sequence[str], places: list[int], copies: int) -> Iterator[int]:
    """Yield where ``copies`` neighbouring places are copies of a word or phrase."""
    gaps = copies - 1
    for number in range(len(places) - gaps):
        first, last = places[number], places[number + gaps]
        length = last - first
        if length > gaps * _LONGEST_PHRASE:
            continue
        if length <= gaps * (1 + _MOST_BETWEEN) and len(set(keys[first : last + 1])) <= _FEW_WORDS:
            yield number
            continue
        period, rest = divmod(length, gaps)
        if not rest and keys[first : last - period] == keys[first + period : last]:
            yield number


def _widened(keys: Sequence[str], first: int, last: int) -> Stretch:
    """Extend a stretch as far as it goes on in the same way."""
    words = set(keys[first:last])
    if len(words) <= _FEW_WORDS:
        while first > 0 and keys[first - 1] in words:
            first -= 1
        while last < len(keys) and keys[last] in words:
            last += 1
        return Stretch(first, last, len(words))
    period = keys.index(keys[first], first + 1) - first
    while first > 0 and keys[first - 1] == keys[first - 1 + period]:
        first -= 1
    while last < len(keys) and keys[last] == keys[last - period]:
        last += 1
    return Stretch(first, last, period)


def _apart(stretches: list[Stretch]) -> list[Stretch]:
    """Sort stretches, and leave out those that overlap an earlier or longer one."""
    kept: list[Stretch] = []
    for stretch in sorted(stretches, key=lambda each: (each.first, -each.last)):
        if not kept or stretch.first >= kept[-1].last:
            kept.append(stretch)
    return kept
