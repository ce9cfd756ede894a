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

_SPACE_BEFORE = re.compile(r"\S? |")
_MOST_OF = 0.75
_SPACE_BEHIND = re.compile(r" \S?|")


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
    """A text and its units.

    Args:
        text: The text.
        reader: Cuts it into units.
    """

    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        plain = reader.plain_keys(text)
        self.keys = self.units.keys if plain is None else plain
        self.positions = positions_of(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def units(self) -> Units:
        """The units with their offsets."""
        return self._reader.read(self.text)

    @cached_property
    def evenness(self) -> float:
        """The probability that two units are equal."""
        return sum(len(places) ** 2 for places in self.positions.values()) / max(1, len(self)) ** 2

    def company(self, places: Sequence[int]) -> Company:
        """Compare the neighbours of the copies of a word: no other copies, and no punctuation in between.

        A word in ordinary use keeps company (*the* contract, boundary *layer*); copies put in keep none.
        """
        alike = chance = 0.0
        neighbours = different = 0
        for side in (self._neighbours(places, -1), self._neighbours(places, 1)):
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

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    def bare(self, places: Sequence[int]) -> float:
        """Return the share of copies that stand between single spaces or at an end of the text."""
        return sum(self._is_bare(place) for place in places) / len(places)

    def _is_bare(self, place: int) -> bool:
        start, end = self.units.starts[place], self.units.ends[place]
        before, behind = self.text[max(0, start - 2) : start], self.text[end : end + 2]
        return bool(_SPACE_BEFORE.fullmatch(before) and _SPACE_BEHIND.fullmatch(behind))

    def _neighbours(self, places: Sequence[int], step: int) -> Counter[str]:
        """Count the units before or behind copies of a word from which only white space separates them."""
        keys, starts, ends = self.units
        word, last = keys[places[0]], len(keys) - 1
        return Counter(
            keys[place + step]
            for place in places
            if 0 <= place + step <= last
            and keys[place + step] != word
            and self.text[ends[min(place, place + step)] : starts[max(place, place + step)]].isspace()
        )
