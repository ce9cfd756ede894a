"""Find the copies of flagged words, from the keys of a text's units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

FEWEST_COPIES = 4
_MOST_BETWEEN = 2
_UNITS_PER_COPY = 250
"""Each copy more than this apart on average counts as ordinary use."""


def flagged_copies(positions: Mapping[str, list[int]], units: int, words: frozenset[str]) -> set[int]:
    """Return the places of copies of flagged words that no ordinary text would have.

    Copies are too many where four of them have at most two other words between each, or where the whole text
    has more than its length explains.

    Args:
        positions: Places of every key that occurs at least `FEWEST_COPIES` times.
        units: Length of the text.
        words: Keys of the flagged words.
    """
    found: set[int] = set()
    for key, places in positions.items():
        if key not in words:
            continue
        if len(places) >= max(FEWEST_COPIES, units / _UNITS_PER_COPY):
            found.update(places)
        else:
            for first, last in close_groups(places, 1 + _MOST_BETWEEN):
                found.update(places[first:last])
    return found


def mixed_runs(keys: Sequence[str], words: frozenset[str]) -> Iterator[range]:
    """Yield stretches of at least four flagged words, equal or not, without another word in between."""
    start = 0
    for place, key in enumerate(keys):
        if key not in words:
            if place - start >= FEWEST_COPIES:
                yield range(start, place)
            start = place + 1
    if len(keys) - start >= FEWEST_COPIES:
        yield range(start, len(keys))


def close_groups(places: Sequence[int], farthest: int) -> Iterator[tuple[int, int]]:
    """Yield where at least four neighbouring places are no farther apart than this."""
    start = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] - places[number - 1] > farthest:
            if number - start >= FEWEST_COPIES:
                yield start, number
            start = number
