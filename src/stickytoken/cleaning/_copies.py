"""Find repetitions in a text, and copies of words that would not occur in ordinary text."""

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

# The constants below were chosen with `benchmarks/cleaning.py shares`: nearly all planted copies are found,
# but hardly any words of natural texts (Cranfield, TREC and STS-B).

# Minimum number of copies of a word for a finding. Three in a row can be emphasis ("very very very
# good").
FEWEST_COPIES = 4


class Company(NamedTuple):
    """Statistics of the words next to the copies of a word. In ordinary use, the same neighbours recur."""

    matching_pairs: float  # number of pairs of copies with the same word before or after them
    expected_pairs: float  # expected number of such pairs if the copies stood at random positions
    distinct_share: float  # share of distinct words among the neighbours


class Document:
    """A text, divided into units.

    Attributes:
        text: The text.
        keys: The key of each unit. Units with equal keys are copies of each other.
        positions: The indices of the units with each key.
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

    def positions_of(self, words: frozenset[str]) -> set[int]:
        """Return the indices of the units that match any of these words."""
        indices: set[int] = set()
        for word in words.intersection(self.positions):
            indices.update(self.positions[word])
        return indices

    @cached_property
    def units(self) -> Units:
        """The units with their offsets in the text."""
        if self._plain is None:
            return self._reader.read(self.text)
        spans = [match.span() for match in self._reader.lower_word.finditer(self.text.lower())]
        return Units(self._plain, [start for start, _ in spans], [end for _, end in spans])

    @cached_property
    def joints(self) -> list[str]:
        """The text before each unit, and the text after the last unit."""
        ends = [0, *self.units.ends]
        starts = [*self.units.starts, len(self.text)]
        return [self.text[end:start] for end, start in zip(ends, starts, strict=True)]

    @cached_property
    def chance_of_equality(self) -> float:
        """The probability that two units drawn at random are equal."""
        equal_pairs = sum(len(positions_of_word) ** 2 for positions_of_word in self.positions.values())
        return equal_pairs / max(1, len(self)) ** 2

    def company(self, positions: Sequence[int]) -> Company:
        """Return statistics of the words beside copies of a word.

        Adjacent copies, and words on the other side of punctuation, do not count as neighbours.
        """
        keys = self.keys
        word = keys[positions[0]]
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        for position in positions:
            if self._is_spaced[position] and keys[position - 1] != word:
                before[keys[position - 1]] += 1
            if self._is_spaced[position + 1] and keys[position + 1] != word:
                after[keys[position + 1]] += 1
        matching_pairs = 0.0
        expected_pairs = 0.0
        for side in (before, after):
            neighbours = side.total()
            matching_pairs += sum(count * (count - 1) / 2 for count in side.values())
            expected_pairs += neighbours * (neighbours - 1) / 2 * self.chance_of_equality
        distinct_share = (len(before) + len(after)) / max(1, before.total() + after.total())
        return Company(matching_pairs, expected_pairs, distinct_share)

    def is_listed(self, positions: Sequence[int]) -> bool:
        """Return whether most copies stand on consecutive lines, as in a list."""
        lines = [bisect(self._line_ends, self.units.starts[position]) for position in positions]
        on_next_line = sum(after - before == 1 for before, after in pairwise(lines))
        return on_next_line >= _LISTED_SHARE * (len(lines) - 1)

    def bare_share(self, positions: Sequence[int]) -> float:
        """Return the share of copies with exactly one space on both sides, as planted copies have."""
        return sum(self._is_bare[position] for position in positions) / len(positions)

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _is_spaced(self) -> list[bool]:
        """Whether only whitespace separates each unit from the unit before it.

        The entry of the first unit is false, and so is an additional last entry for the end of the text.
        """
        return [False, *map(str.isspace, self.joints[1:-1]), False]

    @cached_property
    def _is_bare(self) -> list[bool]:
        """Whether each unit has exactly one space, or the start or end of the text, on each side."""
        joints = self.joints
        distinct = set(joints)
        ends_in_one_space = {joint for joint in distinct if joint[-1:] == " " and not joint[-2:-1].isspace()}
        begins_with_one = {joint for joint in distinct if joint[:1] == " " and not joint[1:2].isspace()}
        has_space_before = [joint in ends_in_one_space for joint in joints[:-1]]
        has_space_after = [joint in begins_with_one for joint in joints[1:]]
        if has_space_before:
            has_space_before[0] = has_space_before[0] or not joints[0]
            has_space_after[-1] = has_space_after[-1] or not joints[-1]
        return [before and after for before, after in zip(has_space_before, has_space_after, strict=True)]


# Limits for stretches that repeat a phrase or a few words.

# Minimum number of units in a stretch that repeats a few words in no fixed order. Shorter stretches occur
# naturally.
MIXED_RUN = 16
_MIXED_WORDS = 3  # maximum number of distinct words in such a stretch
_LONGEST_PERIOD = 16  # maximum length of a repeated phrase, in units
_MIXED_GAP = 4  # maximum mean distance between copies of a word, in units, without a fixed order


class Stretch(NamedTuple):
    """A part of a text that repeats a word or phrase, or a few words in varying order."""

    first: int  # index of the first unit
    last: int  # index after the last unit
    period: int  # number of units per copy; 0 if the order varies


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    """Return the stretches of a text in order, without overlaps.

    Args:
        keys: The keys of the text's units.
        positions: For each word that occurs often enough, the indices of its copies.
        copies: Minimum number of copies that form a stretch.
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
    # Keep one of several overlapping stretches. Long mixed stretches take precedence over regular ones, and
    # these over short mixed ones. Then the earlier stretch is kept and, if both begin at the same unit, the
    # longer one.
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
    """Extend a part of a text to the longest stretch that consists only of these words."""
    while first > 0 and keys[first - 1] in words:
        first -= 1
    while last < len(keys) and keys[last] in words:
        last += 1
    return Stretch(first, last, 0)


def _lengthened(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    """Extend a part of a text to the longest stretch with this period.

    A unit belongs to the stretch if it equals the unit one period before it. Whole slices are compared: the
    steps double while the slices are equal, and then halve. Example: in "x a b a b a b a b a b y" with the
    period 2, the first four "a" have the indices 1, 3, 5 and 7. The end moves from 7 by 1 to 8, and then by 2
    to 10. Steps of 4 and 2 would include "y", so the last step is 1, and the end is 11, the index of "y".
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

# Maximum number of other words between two copies that count as close together.
_BETWEEN_COPIES = 2
# The words between copies count as planted if each of them occurs at least twice, and at least once for every
# four copies.
_FEWEST_REPEATED = 2
_REPEATED_SHARE = 0.25
# A text has too many copies spread over it if there is at least one for every `_UNITS_PER_COPY` units, or if
# there are at least `_ENOUGH_COPIES`, whatever its length.
_UNITS_PER_COPY = 250
_ENOUGH_COPIES = 16
# Copies spread over a text are ordinary use if the number of pairs of copies that share a neighbour exceeds
# 0.5 plus three times the number expected by chance.
_MOST_MATCHING_PAIRS = 0.5
_TIMES_CHANCE = 3.0
# Copies of a common word are a finding if there are at least `_COMMON_COPIES` of them, and if they make up at
# least `_COMMON_SHARE` of the units.
_COMMON_COPIES = 6
_COMMON_SHARE = 0.2


def flagged_copies(document: Document, words: frozenset[str]) -> set[int]:
    """Return the indices of copies of flagged words, and of the words repeated between them.

    Copies of a word are included if four of them in a row are separated by at most two other words each, or
    if the text has more copies than its length explains.
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
            if company.matching_pairs <= _MOST_MATCHING_PAIRS + _TIMES_CHANCE * company.expected_pairs:
                copies.update(positions)
        for group in _close_groups(positions, 1 + _BETWEEN_COPIES, FEWEST_COPIES):
            copies.update(group)
            copies.update(_repeated_between(document, group))
    # Consecutive flagged words are a finding even if the words differ.
    for group in _close_groups(sorted(document.positions_of(words)), 1, FEWEST_COPIES):
        if not all(_is_common(document.keys[position]) for position in group):
            copies.update(group)
    return copies


def _is_common(key: str) -> bool:
    """Return whether a key is a common word or a single ASCII character."""
    return (len(key) == 1 and key.isascii()) or key in COMMON


def _close_groups(positions: Sequence[int], farthest: int, fewest: int) -> Iterator[Sequence[int]]:
    """Yield groups of at least ``fewest`` positions, with neighbours at most ``farthest`` apart."""
    start = 0
    for number in range(1, len(positions) + 1):
        if number == len(positions) or positions[number] - positions[number - 1] > farthest:
            if number - start >= fewest:
                yield positions[start:number]
            start = number


def _repeated_between(document: Document, positions: Sequence[int]) -> list[int]:
    """Return the indices of the words between copies; empty unless each of these words is itself repeated."""
    keys = document.keys
    first = positions[0]
    last = positions[-1] + 1
    words = set(keys[first:last])
    # A repeated pattern may begin before the first copy or end after the last one, as in "able to able by
    # able to able by".
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


# Copies of unflagged words. They are only suspected, because a text also repeats its subject, such as "shock"
# in a text about shock waves. Three signs distinguish planted copies from a subject: there are many of them,
# their neighbours vary, and all have single spaces on both sides, whereas words in ordinary writing often
# adjoin punctuation and line ends.

# A word has many copies in a text if there are at least `_MANY_COPIES` of them, and at least one copy for
# every `_UNITS_PER_MANY` units of the text.
_MANY_COPIES = 8
_UNITS_PER_MANY = 60
# The copies are dense if there is at least one for every `_UNITS_PER_DENSE` units.
_UNITS_PER_DENSE = 5
# Many or dense copies seem planted only if at least this share of them has exactly one space on each side.
_BARE_SHARE = 0.9
# A word with many copies counts as the subject of the text, not as planted, if the number of copy pairs that
# share a neighbour exceeds this multiple of the number expected by chance.
_TIMES_CHANCE_UNFLAGGED = 1.6
# Copies are regular if there are at least `_REGULAR_COPIES`, or `_REGULAR_CLOSE_COPIES` close together, and
# if the largest distance between neighbours is at most `_UNEVEN` times the smallest distance, plus one unit.
_REGULAR_COPIES = 6
_REGULAR_CLOSE_COPIES = 5
_UNEVEN = 1.2
# Regular copies seem planted only if at least this share of them has exactly one space on each side.
_REGULAR_BARE_SHARE = 0.8
# Regular or dense copies seem planted only if at least this share of their neighbours are distinct words.
_VARIED_SHARE = 0.8
# A text is a list if at least this share of the copies stand on consecutive lines. The entries of a list may
# begin with the same word.
_LISTED_SHARE = 0.75


def planted_copies(document: Document, words: frozenset[str], repetitions: Iterable[Stretch]) -> set[int]:
    """Return the indices of copies that seem to have been planted, of words that are not flagged.

    Args:
        document: The text.
        words: The flagged words, which are skipped.
        repetitions: Stretches that are already findings; copies in them are ignored.
    """
    copies: set[int] = set()
    taken: set[int] = set()
    for stretch in repetitions:
        taken.update(range(stretch.first, stretch.last))
    for key, all_positions in document.positions.items():
        if len(all_positions) < FEWEST_COPIES or len(key) == 1 or key[0].isdigit():
            continue
        if _is_common(key) or key in words:
            continue
        free_positions = (
            [position for position in all_positions if position not in taken] if taken else all_positions
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
    """Return whether there are so many copies, with such varied neighbours, that they seem planted."""
    is_many = len(positions) >= max(_MANY_COPIES, len(document) / _UNITS_PER_MANY)
    is_dense = len(positions) >= len(document) / _UNITS_PER_DENSE
    if not (is_many or is_dense) or document.bare_share(positions) < _BARE_SHARE:
        return False
    company = document.company(positions)
    is_random = company.matching_pairs <= _TIMES_CHANCE_UNFLAGGED * company.expected_pairs
    return (is_many and is_random) or (is_dense and company.distinct_share >= _VARIED_SHARE)


def _is_regular(document: Document, positions: Sequence[int]) -> bool:
    """Return whether copies are evenly spaced, with varied neighbours, so that they seem planted."""
    gaps = [after - before for before, after in pairwise(positions)]
    if max(gaps) > _UNEVEN * min(gaps) + 1:
        return False
    is_varied = document.company(positions).distinct_share >= _VARIED_SHARE
    return is_varied and document.bare_share(positions) >= _REGULAR_BARE_SHARE
