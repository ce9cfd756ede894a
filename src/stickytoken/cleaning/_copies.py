"""Find what repeats in a text, and copies that ordinary text would not have."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from stickytoken.cleaning._characters import COMMON
from stickytoken.cleaning._units import UnitReader, Units

# Every figure below was chosen so that `benchmarks/cleaning.py shares` finds nearly all planted copies and
# hardly anything in natural texts (Cranfield, TREC and STS-B).

# Copies of one word that can be a finding; three in a row are emphasis ("very very very good").
FEWEST_COPIES = 4


class Company(NamedTuple):
    """The words beside copies. A word in ordinary use recurs in the same company; planted copies do not."""

    alike: float  # pairs of copies with the same word before or behind them
    chance: float  # such pairs if the copies stood at random places
    varied: float  # share of different words among the neighbours


class Document:
    """A text, cut into units.

    Attributes:
        text: The text.
        keys: What each unit is compared by.
        positions: The places of each key among the units.
    """

    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        self._plain = reader.plain_keys(text)
        self.keys = self.units.keys if self._plain is None else self._plain
        self.positions: dict[str, list[int]] = defaultdict(list)
        for index, key in enumerate(self.keys):
            self.positions[key].append(index)

    def __len__(self) -> int:
        return len(self.keys)

    def places_of(self, words: frozenset[str]) -> set[int]:
        """Return all places of some words."""
        line_ends: set[int] = set()
        for word in words.intersection(self.positions):
            line_ends.update(self.positions[word])
        return line_ends

    @cached_property
    def units(self) -> Units:
        if self._plain is None:
            return self._reader.read(self.text)
        spans = [match.span() for match in self._reader.lower_word.finditer(self.text.lower())]
        return Units(self._plain, [start for start, _ in spans], [end for _, end in spans])

    @cached_property
    def joints(self) -> list[str]:
        """What stands before each unit, and what stands behind the last one."""
        ends = [0, *self.units.ends]
        starts = [*self.units.starts, len(self.text)]
        return [self.text[end:start] for end, start in zip(ends, starts, strict=True)]

    @cached_property
    def evenness(self) -> float:
        """The probability that two units drawn at random are equal."""
        equal_pairs = sum(len(positions_of_word) ** 2 for positions_of_word in self.positions.values())
        return equal_pairs / max(1, len(self)) ** 2

    def company(self, positions: Sequence[int]) -> Company:
        """Compare the words beside copies of a word, but not other copies nor words across punctuation."""
        keys = self.keys
        word = keys[positions[0]]
        before: Counter[str] = Counter()
        behind: Counter[str] = Counter()
        for position in positions:
            if self._is_spaced[position] and keys[position - 1] != word:
                before[keys[position - 1]] += 1
            if self._is_spaced[position + 1] and keys[position + 1] != word:
                behind[keys[position + 1]] += 1
        alike = 0.0
        chance = 0.0
        for side in (before, behind):
            neighbours = side.total()
            alike += sum(count * (count - 1) / 2 for count in side.values())
            chance += neighbours * (neighbours - 1) / 2 * self.evenness
        varied = (len(before) + len(behind)) / max(1, before.total() + behind.total())
        return Company(alike, chance, varied)

    def is_listed(self, positions: Sequence[int]) -> bool:
        """Return whether most copies stand on lines that follow each other, as in a list."""
        lines = [bisect(self._line_ends, self.units.starts[position]) for position in positions]
        on_next_line = sum(after - before == 1 for before, after in pairwise(lines))
        return on_next_line >= _LISTED_SHARE * (len(lines) - 1)

    def bare_share(self, positions: Sequence[int]) -> float:
        """Return the share of copies with one space on both sides, as planted ones have."""
        return sum(self._is_bare[position] for position in positions) / len(positions)

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _is_spaced(self) -> list[bool]:
        """Whether nothing but space stands before each unit, and behind the last one."""
        return [False, *map(str.isspace, self.joints[1:-1]), False]

    @cached_property
    def _is_bare(self) -> list[bool]:
        """Whether each unit has one space, or the end of the text, on both sides."""
        joints = self.joints
        distinct = set(joints)
        ends_in_one_space = {joint for joint in distinct if joint[-1:] == " " and not joint[-2:-1].isspace()}
        begins_with_one = {joint for joint in distinct if joint[:1] == " " and not joint[1:2].isspace()}
        before = [joint in ends_in_one_space for joint in joints[:-1]]
        behind = [joint in begins_with_one for joint in joints[1:]]
        if before:
            before[0] = before[0] or not joints[0]
            behind[-1] = behind[-1] or not joints[-1]
        return [one and other for one, other in zip(before, behind, strict=True)]


# Stretches in which a few words repeat.

# Units that three different words in no fixed order must fill to be a repetition; fewer may be natural.
MIXED_RUN = 16
_MIXED_WORDS = 3
_LONGEST_PERIOD = 16  # units that one copy of a phrase may take
_MIXED_GAP = 4  # units from one copy of a word to the next, on average, where the order is not fixed


class Stretch(NamedTuple):
    """A part of a text that consists of copies of a word or phrase, or of a few words in no fixed order."""

    first: int
    last: int  # the unit behind the last one
    period: int  # how many units one copy takes; 0 if the order is not fixed


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    """Return the stretches of a text in order, without overlaps.

    Args:
        keys: The units of the text.
        positions: The places of the words that occur often enough.
        copies: How many copies are enough.
    """
    regular: list[Stretch] = []
    mixed: list[Stretch] = []
    gaps = copies - 1
    for word_positions in positions.values():
        regular_end = mixed_end = 0
        for first, last in zip(word_positions, word_positions[gaps:], strict=False):
            if first < regular_end or last - first > gaps * _LONGEST_PERIOD:
                continue
            period, rest = divmod(last - first, gaps)
            if not rest and keys[first : last - period] == keys[first + period : last]:
                stretch = _lengthened(keys, first, last, period)
                regular.append(stretch)
                regular_end = stretch.last
            elif first >= mixed_end and last - first <= gaps * _MIXED_GAP:
                words = set(keys[first : last + 1])
                if len(words) <= _MIXED_WORDS:
                    stretch = _filled(keys, first, last + 1, words)
                    mixed.append(stretch)
                    mixed_end = stretch.last
    # Of those that overlap, long mixed ones stay first, then regular ones, and among equals the earlier one,
    # then the longer one.
    long_mixed = [stretch for stretch in mixed if stretch.last - stretch.first >= MIXED_RUN]
    taken = bytearray(len(keys))
    kept_stretches = []
    for stretches in (long_mixed, regular, mixed):
        for stretch in sorted(stretches, key=lambda stretch: (stretch.first, -stretch.last)):
            if taken.find(1, stretch.first, stretch.last) < 0:
                taken[stretch.first : stretch.last] = b"\1" * (stretch.last - stretch.first)
                kept_stretches.append(stretch)
    return sorted(kept_stretches)


def _filled(keys: Sequence[str], first: int, last: int, words: set[str]) -> Stretch:
    """Return the stretch around a part of a text that holds none but some words."""
    while first > 0 and keys[first - 1] in words:
        first -= 1
    while last < len(keys) and keys[last] in words:
        last += 1
    return Stretch(first, last, 0)


def _lengthened(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    """Return the stretch around a part of a text in which the same period goes on.

    A unit belongs to the stretch if it equals the one a period before it. Whole slices are compared: steps
    double while they fit and then halve. In "x a b a b a b a b a b y" with the period 2, the first four "a"
    stand at 1, 3, 5 and 7. The end moves from 7 by 1 to 8 and by 2 to 10; steps of 4 and 2 would reach beyond
    "y", a step of 1 fits, and the end is 11, the place of "y".
    """
    step = 1
    while step:
        if keys[last : last + step] == keys[last - period : last - period + step]:
            last += step
            step *= 2
        else:
            step //= 2
    step = 1
    while step:
        if step <= first and keys[first - step : first] == keys[first - step + period : first + period]:
            first -= step
            step *= 2
        else:
            step //= 2
    return Stretch(first, last, period)


# Copies of flagged words.

# Other words between two copies that stand together.
_BETWEEN_COPIES = 2
# They belong to what was planted if each of them is there twice or more, and for every fourth copy.
_FEWEST_REPEATED = 2
_REPEATED_SHARE = 0.25
# Copies that are spread over a text: one for so many units, but no more than this number need be there.
_UNITS_PER_COPY = 250
_ENOUGH_COPIES = 16
# They are ordinary use if more pairs of them than this have the same neighbour: half a pair, and three times
# as many as there would be by chance.
_ALIKE_PAIRS = 0.5
_TIMES_CHANCE = 3.0
# A word that is common in every text must be there so often, and make up this share of the units.
_COMMON_COPIES = 6
_COMMON_SHARE = 0.2


def flagged_copies(document: Document, words: frozenset[str]) -> set[int]:
    """Return the positions of copies of flagged words, and of the text that is repeated between them.

    There must be four with at most two other words between each, or more in a text than its length explains.
    """
    copies: set[int] = set()
    for word in words.intersection(document.positions):
        positions = document.positions[word]
        if len(positions) < FEWEST_COPIES:
            continue
        if _is_common(word):
            if len(positions) >= max(_COMMON_COPIES, _COMMON_SHARE * len(document)):
                copies.update(positions)
            continue
        if len(positions) >= min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES):
            company = document.company(positions)
            if company.alike <= _ALIKE_PAIRS + _TIMES_CHANCE * company.chance:
                copies.update(positions)
        for group in _close_groups(positions, 1 + _BETWEEN_COPIES, FEWEST_COPIES):
            copies.update(group)
            copies.update(_repeated_between(document, group))
    # Flagged words, equal or not, without another word between them.
    for group in _close_groups(sorted(document.places_of(words)), 1, FEWEST_COPIES):
        if not all(_is_common(document.keys[position]) for position in group):
            copies.update(group)
    return copies


def _is_common(key: str) -> bool:
    return (len(key) == 1 and key.isascii()) or key in COMMON


def _close_groups(positions: Sequence[int], farthest: int, fewest: int) -> Iterator[Sequence[int]]:
    """Yield the groups of places that are at most ``farthest`` from the next, and hold ``fewest`` or more."""
    start = 0
    for number in range(1, len(positions) + 1):
        if number == len(positions) or positions[number] - positions[number - 1] > farthest:
            if number - start >= fewest:
                yield positions[start:number]
            start = number


def _repeated_between(document: Document, positions: Sequence[int]) -> list[int]:
    """Return the places of the other words between copies, if each of them is repeated as the copies are."""
    keys = document.keys
    first = positions[0]
    last = positions[-1] + 1
    words = set(keys[first:last])
    # One more on either side belongs to the pattern, as the last in "able to able by able to able by".
    while first > max(0, positions[0] - _BETWEEN_COPIES) and keys[first - 1] in words:
        first -= 1
    while last < min(len(keys), positions[-1] + 1 + _BETWEEN_COPIES) and keys[last] in words:
        last += 1
    copies = set(positions)
    others = [position for position in range(first, last) if position not in copies]
    if len(others) < FEWEST_COPIES:
        return []
    counts = Counter(keys[position] for position in others)
    fewest = max(_FEWEST_REPEATED, len(positions) * _REPEATED_SHARE)
    return others if min(counts.values()) >= fewest else []


# Copies of words without a flag. They are only suspected, because the subject of a text repeats too: "shock"
# in a text about shock waves. Three signs tell planted copies from a subject: there are many of them, their
# neighbours vary, and they have plain spaces around them, where writing has punctuation and line ends.

# Many: at least so many copies, and one for so many units.
_MANY_COPIES = 8
_UNITS_PER_MANY = 60
# Dense: one of so many units is a copy.
_UNITS_PER_DENSE = 5
# Share of many or dense copies with one space on both sides.
_BARE_SHARE = 0.9
# Many copies have a subject's company if the pairs with the same neighbour are more than chance times this.
_TIMES_CHANCE_UNFLAGGED = 1.6
# Regular: at least so many copies, or copies close together, at distances of which the largest is at most the
# smallest times this, and one unit more.
_REGULAR_COPIES = 6
_REGULAR_CLOSE_COPIES = 5
_UNEVEN = 1.2
# Share of regular copies with one space on both sides.
_REGULAR_BARE_SHARE = 0.8
# Smallest share of distinct words among the neighbours of regular or dense copies.
_VARIED_SHARE = 0.8
# Share of copies on consecutive lines that makes a list, whose entries may begin alike.
_LISTED_SHARE = 0.75


def planted_copies(document: Document, words: frozenset[str], repetitions: Iterable[Stretch]) -> set[int]:
    """Return the places of copies of words without a flag that seem to have been planted.

    Args:
        document: The text.
        words: The flagged words, which are left out.
        repetitions: Stretches that are findings already; the copies in them are not counted.
    """
    copies: set[int] = set()
    taken: set[int] = set()
    for stretch in repetitions:
        taken.update(range(stretch.first, stretch.last))
    for key, all_places in document.positions.items():
        if len(all_places) < FEWEST_COPIES or len(key) == 1 or key[0].isdigit():
            continue
        if _is_common(key) or key in words:
            continue
        free_positions = (
            [position for position in all_places if position not in taken] if taken else all_places
        )
        if len(free_positions) < FEWEST_COPIES or document.is_listed(free_positions):
            continue
        if _is_crowded(document, free_positions) or (
            len(free_positions) >= _REGULAR_COPIES and _is_regular(document, free_positions)
        ):
            copies.update(free_positions)
            continue
        for group in _close_groups(free_positions, 1 + _BETWEEN_COPIES, _REGULAR_CLOSE_COPIES):
            if _is_regular(document, group):
                copies.update(group)
    return copies


def _is_crowded(document: Document, positions: Sequence[int]) -> bool:
    """Return whether copies are too many for a subject, and not in a subject's company."""
    is_many = len(positions) >= max(_MANY_COPIES, len(document) / _UNITS_PER_MANY)
    is_dense = len(positions) >= len(document) / _UNITS_PER_DENSE
    if not (is_many or is_dense) or document.bare_share(positions) < _BARE_SHARE:
        return False
    company = document.company(positions)
    is_random = company.alike <= _TIMES_CHANCE_UNFLAGGED * company.chance
    return (is_many and is_random) or (is_dense and company.varied >= _VARIED_SHARE)


def _is_regular(document: Document, positions: Sequence[int]) -> bool:
    """Return whether copies stand at about equal distances among varied words."""
    gaps = [after - before for before, after in pairwise(positions)]
    if max(gaps) > _UNEVEN * min(gaps) + 1:
        return False
    is_varied = document.company(positions).varied >= _VARIED_SHARE
    return is_varied and document.bare_share(positions) >= _REGULAR_BARE_SHARE
