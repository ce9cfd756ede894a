"""Find copies of words that ordinary text would not have: of flagged ones, and planted ones of others."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from stickytoken.cleaning._repeats import Stretch, UnitReader, Units
from stickytoken.cleaning.rules import COMMON

_MOST_OF = 0.75


class Company(NamedTuple):
    alike: float  # pairs of copies with the same word before them, and pairs with the same word behind them
    chance: float  # how many such pairs copies would have that stand at random places
    varied: float  # share of different words among the neighbours


class Document:
    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        self._plain = reader.plain_keys(text)
        self.keys = self.units.keys if self._plain is None else self._plain
        self.positions: dict[str, list[int]] = defaultdict(list)
        for place, key in enumerate(self.keys):
            self.positions[key].append(place)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def units(self) -> Units:
        if self._plain is None:
            return self._reader.read(self.text)
        return self._reader.read_plain(self.text, self._plain)

    @cached_property
    def joints(self) -> list[str]:
        """What stands before each unit, and at last what stands behind the last one."""
        _, starts, ends = self.units
        bounds = zip([0, *ends], [*starts, len(self.text)], strict=True)
        return [self.text[end:start] for end, start in bounds]

    @cached_property
    def evenness(self) -> float:
        return sum(len(places) ** 2 for places in self.positions.values()) / max(1, len(self)) ** 2

    def company(self, places: Sequence[int]) -> Company:
        """Compare the neighbours of the copies of a word: no other copies, and no punctuation in between.

        A word in ordinary use keeps company (*the* contract, boundary *layer*); copies put in keep none.
        """
        keys, spaced = self.keys, self._spaced
        word = keys[places[0]]
        before = Counter(keys[each - 1] for each in places if spaced[each] and keys[each - 1] != word)
        behind = Counter(keys[each + 1] for each in places if spaced[each + 1] and keys[each + 1] != word)
        alike = chance = 0.0
        neighbours = different = 0
        for side in (before, behind):
            size = side.total()
            alike += sum(count * (count - 1) / 2 for count in side.values())
            chance += size * (size - 1) / 2 * self.evenness
            neighbours += size
            different += len(side)
        return Company(alike, chance, different / max(1, neighbours))

    def is_listed(self, places: Sequence[int]) -> bool:
        if not self._line_ends:
            return False
        lines = [bisect(self._line_ends, self.units.starts[place]) for place in places]
        return sum(after - before == 1 for before, after in pairwise(lines)) >= _MOST_OF * (len(lines) - 1)

    def bare(self, places: Sequence[int]) -> float:
        return sum(map(self._bare.__getitem__, places)) / len(places)

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _spaced(self) -> list[bool]:
        """Whether only white space separates a unit from the one before it."""
        blank = {joint for joint in self._distinct_joints if joint.isspace()}
        return [False, *(joint in blank for joint in self.joints[1:-1]), False]

    @cached_property
    def _bare(self) -> list[bool]:
        """Whether a unit stands between single spaces or at an end of the text."""
        first, *inner, last = self.joints
        closing = {
            joint for joint in self._distinct_joints if joint[-1:] == " " and not joint[-2:-1].isspace()
        }
        opening = {joint for joint in self._distinct_joints if joint[:1] == " " and not joint[1:2].isspace()}
        before = [not first or first in closing, *(joint in closing for joint in inner)]
        behind = [*(joint in opening for joint in inner), not last or last in opening]
        return [one and other for one, other in zip(before, behind, strict=True)]

    @cached_property
    def _distinct_joints(self) -> set[str]:
        return set(self.joints)


FEWEST_COPIES = 4
_MOST_BETWEEN = 2
# Words between copies belong to the pattern if each of them is there so often, and for every fourth copy.
_REPEATED = 2
_REPEATED_SHARE = 0.25
_UNITS_PER_COPY = 250
_ENOUGH_COPIES = 16
# A word in ordinary use is told by its company; both figures are from `benchmarks/cleaning.py`.
_ALIKE = 0.5
_TIMES_CHANCE = 3.0
# A word that is common in every text must make up a large part of one to be conspicuous.
_COMMON_COPIES = 6
_COMMON_SHARE = 0.2


def flagged_copies(document: Document, words: frozenset[str]) -> set[int]:
    """At least four with at most two words between each, or more in a text than its length explains."""
    found: set[int] = set()
    for key in words.intersection(document.positions):
        places = document.positions[key]
        if len(places) < FEWEST_COPIES:
            continue
        if _is_common(key):
            if len(places) >= max(_COMMON_COPIES, _COMMON_SHARE * len(document)):
                found.update(places)
            continue
        if _is_spread(document, places):
            found.update(places)
        for first, last in _close_groups(places, 1 + _MOST_BETWEEN, FEWEST_COPIES):
            found.update(places[first:last])
            found.update(_repeated_between(document, places[first:last]))
    # Stretches of flagged words, equal or not, without another word in between.
    every = sorted(
        place for key in words.intersection(document.positions) for place in document.positions[key]
    )
    for first, last in _close_groups(every, 1, FEWEST_COPIES):
        group = range(every[first], every[last - 1] + 1)
        if not all(_is_common(document.keys[place]) for place in group):
            found.update(group)
    return found


def _is_common(key: str) -> bool:
    """Whether a word or sign is so common that copies of it far apart prove nothing."""
    return (len(key) == 1 and key.isascii()) or key in COMMON


def _close_groups(places: Sequence[int], farthest: int, least: int) -> Iterator[tuple[int, int]]:
    start = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] - places[number - 1] > farthest:
            if number - start >= least:
                yield start, number
            start = number


def _repeated_between(document: Document, places: Sequence[int]) -> list[int]:
    """Return the places of the other words between copies, if each of them is repeated as the copies are."""
    keys, copies = document.keys, set(places)
    first, last = places[0], places[-1] + 1
    words = set(keys[first:last])
    # One more on either side belongs to the pattern, as the last in "able to able by able to able by".
    while first > max(0, places[0] - _MOST_BETWEEN) and keys[first - 1] in words:
        first -= 1
    while last < min(len(keys), places[-1] + 1 + _MOST_BETWEEN) and keys[last] in words:
        last += 1
    others = [place for place in range(first, last) if place not in copies]
    repeated = Counter(keys[place] for place in others)
    fewest = max(_REPEATED, len(places) * _REPEATED_SHARE)
    return others if len(others) >= FEWEST_COPIES and min(repeated.values()) >= fewest else []


def _is_spread(document: Document, places: Sequence[int]) -> bool:
    if len(places) < min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES):
        return False
    company = document.company(places)
    return company.alike <= _ALIKE + _TIMES_CHANCE * company.chance


# All figures are from `benchmarks/cleaning.py`.
_MANY = 8
_UNITS_PER_PLANTED = 60
_TIMES_CHANCE_PLANTED = 1.6
_MOSTLY_BARE = 0.9
_REGULAR = 6
_REGULAR_AND_CLOSE = 5
_UNEVEN = 1.2
_VARIED = 0.8
_OFTEN_BARE = 0.8
_DENSE_SHARE = 5


def planted_copies(document: Document, words: frozenset[str], runs: Iterable[Stretch]) -> set[int]:
    """Find unflagged words with many copies in ever new company, or at regular distances."""
    found: set[int] = set()
    taken = {place for run in runs for place in range(run.first, run.last)}
    for key, everywhere in document.positions.items():
        if (
            len(everywhere) < FEWEST_COPIES
            or len(key) == 1
            or key[0].isdigit()
            or _is_common(key)
            or key in words
        ):
            continue
        places = [place for place in everywhere if place not in taken] if taken else everywhere
        if len(places) < FEWEST_COPIES or document.is_listed(places):
            continue
        if _is_planted(document, places):
            found.update(places)
            continue
        for first, last in _close_groups(places, 1 + _MOST_BETWEEN, _REGULAR_AND_CLOSE):
            if _is_regular(document, places[first:last]):
                found.update(places[first:last])
    return found


def _is_planted(document: Document, places: Sequence[int]) -> bool:
    copies = len(places)
    many = copies >= _MANY and copies * _UNITS_PER_PLANTED >= len(document)
    dense = copies * _DENSE_SHARE >= len(document)
    if (many or dense) and document.bare(places) >= _MOSTLY_BARE:
        company = document.company(places)
        if many and company.alike <= _TIMES_CHANCE_PLANTED * company.chance:
            return True
        if dense and company.varied >= _VARIED:
            return True
    return copies >= _REGULAR and _is_regular(document, places)


def _is_regular(document: Document, places: Sequence[int]) -> bool:
    gaps = [after - before for before, after in pairwise(places)]
    if max(gaps) > _UNEVEN * min(gaps) + 1:
        return False
    return document.company(places).varied >= _VARIED and document.bare(places) >= _OFTEN_BARE
