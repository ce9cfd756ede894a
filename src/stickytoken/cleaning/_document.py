"""One text, cut into units, with the measures that the rules use."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from stickytoken.cleaning._repeats import positions_of
from stickytoken.cleaning._units import UnitReader, Units

_MOST_OF = 0.75


class Company(NamedTuple):
    """How similar the neighbours of a word's copies are.

    Attributes:
        alike: Pairs of copies with the same word before them, and pairs with the same word behind them.
        chance: How many such pairs copies would have that stand at random places.
        varied: Share of different words among the neighbours.
    """

    alike: float
    chance: float
    varied: float


class Document:
    """A text and its units."""

    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        self._plain = reader.plain_keys(text)
        self.keys = self.units.keys if self._plain is None else self._plain
        self.positions = positions_of(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def units(self) -> Units:
        """The units with their offsets."""
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
        """The probability that two units are equal."""
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
        """Whether most copies are on a line of their own, as in a list or table."""
        if not self._line_ends:
            return False
        lines = [bisect(self._line_ends, self.units.starts[place]) for place in places]
        return sum(after - before == 1 for before, after in pairwise(lines)) >= _MOST_OF * (len(lines) - 1)

    def bare(self, places: Sequence[int]) -> float:
        """Return the share of copies that stand between single spaces or at an end of the text."""
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
