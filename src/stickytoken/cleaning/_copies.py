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


class NeighbourStatistics(NamedTuple):
    """Statistics of the words next to the copies of a word.

    In ordinary use of a word, the same neighbours recur, as in "the boundary layer". The neighbours of
    planted copies match each other hardly more often than words drawn at random from the text.
    """

    matching_pairs: float  # number of pairs of copies that have the same word before or after them
    expected_pairs: float  # expected number of such pairs if the copies stood at random positions
    distinct_share: float  # number of distinct neighbours, divided by the number of neighbours


class Document:
    """A text, divided into units such as words; see `stickytoken.cleaning._units`.

    Attributes:
        text: The text.
        keys: The key of each unit. Units with equal keys are copies of each other.
        positions: For each key, the indices of the units that have this key.
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
    def separators(self) -> list[str]:
        """The text before each unit, followed by the text after the last unit.

        Example: in "(so able)", the separators are "(", " " and ")".
        """
        ends = [0, *self.units.ends]
        starts = [*self.units.starts, len(self.text)]
        return [self.text[end:start] for end, start in zip(ends, starts, strict=True)]

    @cached_property
    def chance_of_equality(self) -> float:
        """The probability that two units drawn at random are equal."""
        equal_pairs = sum(len(positions_of_word) ** 2 for positions_of_word in self.positions.values())
        return equal_pairs / max(1, len(self)) ** 2

    def neighbour_statistics(self, positions: Sequence[int]) -> NeighbourStatistics:
        """Return statistics of the words next to the copies of a word.

        Other copies of the word do not count as neighbours, and neither do words that punctuation separates
        from a copy.

        Args:
            positions: The indices of the copies.
        """
        keys = self.keys
        word = keys[positions[0]]
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        # `_is_joined_by_space` is false before the first unit and after the last unit, so all indices below
        # are valid.
        for position in positions:
            if self._is_joined_by_space[position] and keys[position - 1] != word:
                before[keys[position - 1]] += 1
            if self._is_joined_by_space[position + 1] and keys[position + 1] != word:
                after[keys[position + 1]] += 1
        matching_pairs = 0.0
        expected_pairs = 0.0
        for side in (before, after):
            # n copies with the same neighbour form n (n - 1) / 2 pairs.
            matching_pairs += sum(count * (count - 1) / 2 for count in side.values())
            neighbours = side.total()
            expected_pairs += neighbours * (neighbours - 1) / 2 * self.chance_of_equality
        distinct_share = (len(before) + len(after)) / max(1, before.total() + after.total())
        return NeighbourStatistics(matching_pairs, expected_pairs, distinct_share)

    def are_on_consecutive_lines(self, positions: Sequence[int]) -> bool:
        """Return whether most copies stand on consecutive lines, as in a list."""
        lines = [bisect(self._line_ends, self.units.starts[position]) for position in positions]
        on_next_line = sum(after - before == 1 for before, after in pairwise(lines))
        return on_next_line >= _LISTED_SHARE * (len(lines) - 1)

    def single_spaced_share(self, positions: Sequence[int]) -> float:
        """Return the share of copies with exactly one space on each side, as planted copies have."""
        return sum(self._is_single_spaced[position] for position in positions) / len(positions)

    @cached_property
    def _line_ends(self) -> list[int]:
        """The offsets of all line breaks in the text."""
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _is_joined_by_space(self) -> list[bool]:
        """Whether only whitespace separates each unit from the unit before it.

        The first entry is false, because no unit comes before the first one. The entries of the units are
        followed by one more entry, which is always false.
        """
        return [False, *map(str.isspace, self.separators[1:-1]), False]

    @cached_property
    def _is_single_spaced(self) -> list[bool]:
        """Whether each unit has exactly one space, or the start or end of the text, on each side."""
        # Most separators of a text are equal, so each distinct separator is examined only once.
        distinct = set(self.separators)
        ends_in_one_space = {text for text in distinct if text.endswith(" ") and not text[-2:-1].isspace()}
        begins_in_one_space = {text for text in distinct if text.startswith(" ") and not text[1:2].isspace()}
        # There is one more separator than there are units: separator i is before unit i, and separator i + 1
        # is after it.
        before_units = self.separators[:-1]
        after_units = self.separators[1:]
        has_space_before = [separator in ends_in_one_space for separator in before_units]
        has_space_after = [separator in begins_in_one_space for separator in after_units]
        if before_units:
            has_space_before[0] = has_space_before[0] or not before_units[0]  # the start of the text
            has_space_after[-1] = has_space_after[-1] or not after_units[-1]  # the end of the text
        return [before and after for before, after in zip(has_space_before, has_space_after, strict=True)]


# Limits for stretches that repeat a phrase or a few words.

# Minimum number of units in a stretch that repeats a few words in no fixed order. Shorter stretches occur
# naturally.
MIXED_RUN = 16
# Maximum number of distinct words in a stretch without a fixed order.
_MIXED_WORDS = 3
# Maximum length of a repeated phrase, in units.
_LONGEST_PERIOD = 16
# Maximum mean distance between the copies of a word in a stretch without a fixed order, in units.
_MIXED_GAP = 4


class Stretch(NamedTuple):
    """A part of a text that repeats a word or phrase, or a few words in varying order."""

    # Index of the first unit.
    first: int
    # Index after the last unit.
    end: int
    # Number of units of the repeated word or phrase; 0 if the order of the words varies.
    period: int


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    """Return the stretches of a text in order, without overlaps.

    There are two kinds of stretches. A regular stretch repeats a phrase of one or more units, as in "buy now
    buy now buy now buy now". A mixed stretch consists of at most three different words in varying order, as
    in "lists of tuples, tuples of lists".

    Args:
        keys: The keys of the text's units.
        positions: The indices of the copies of each word that occurs often enough, keyed by the word's key.
        copies: Minimum number of copies that form a stretch.
    """
    regular: list[Stretch] = []
    mixed: list[Stretch] = []
    steps = copies - 1  # number of steps from the first to the last of ``copies`` successive copies
    for word_positions in positions.values():
        # Ends of the latest regular stretch and of the latest mixed stretch with this word. Copies before the
        # end of a stretch already belong to this stretch.
        regular_end = mixed_end = 0
        # Examine each group of ``copies`` successive copies of the word, from position `first` to position
        # `last`. Example: the copies of "buy" in "buy now buy now buy now buy now" have the positions 0, 2, 4
        # and 6. So four copies take 3 steps over a distance of 6, which makes a period of 2.
        for first, last in zip(word_positions, word_positions[steps:], strict=False):
            distance = last - first
            if first < regular_end or distance > steps * _LONGEST_PERIOD:
                continue
            period, remainder = divmod(distance, steps)
            # A phrase is repeated if each unit equals the unit one period later.
            if remainder == 0 and keys[first : last - period] == keys[first + period : last]:
                stretch = _extended_with_period(keys, first, last, period)
                regular.append(stretch)
                regular_end = stretch.end
            elif first >= mixed_end and distance <= steps * _MIXED_GAP:
                words = set(keys[first : last + 1])
                if len(words) <= _MIXED_WORDS:
                    stretch = _extended_with_words(keys, first, last + 1, words)
                    mixed.append(stretch)
                    mixed_end = stretch.end
    return _without_overlaps(regular, mixed, len(keys))


def _without_overlaps(regular: Sequence[Stretch], mixed: Sequence[Stretch], unit_count: int) -> list[Stretch]:
    """Return the stretches of a text in order, with only one of several overlapping stretches.

    Long mixed stretches (of at least `MIXED_RUN` units) take precedence over regular stretches, and regular
    stretches over short mixed ones. Of two stretches of the same kind, the one that begins first is kept, and
    if both begin at the same unit, the longer one.

    Args:
        regular: The stretches that repeat a phrase.
        mixed: The stretches that consist of a few words in varying order.
        unit_count: Number of units in the text.
    """
    long_mixed = [stretch for stretch in mixed if stretch.end - stretch.first >= MIXED_RUN]
    short_mixed = [stretch for stretch in mixed if stretch.end - stretch.first < MIXED_RUN]
    taken = bytearray(unit_count)  # 1 for each unit of a stretch that is kept
    kept_stretches = []
    for stretches in (long_mixed, regular, short_mixed):
        for stretch in sorted(stretches, key=lambda stretch: (stretch.first, -stretch.end)):
            if taken.find(1, stretch.first, stretch.end) < 0:
                taken[stretch.first : stretch.end] = b"\1" * (stretch.end - stretch.first)
                kept_stretches.append(stretch)
    return sorted(kept_stretches)


def _extended_with_words(keys: Sequence[str], first: int, end: int, words: set[str]) -> Stretch:
    """Extend a part of a text to the longest stretch that consists only of the given words.

    ``first`` is the index of the part's first unit, and ``end`` the index after its last unit.
    """
    while first > 0 and keys[first - 1] in words:
        first -= 1
    while end < len(keys) and keys[end] in words:
        end += 1
    return Stretch(first, end, period=0)


def _extended_with_period(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    """Extend a part of a text to the longest stretch that repeats with the given period.

    In a stretch with this period, each unit equals the unit one period before it. ``first`` and ``last`` are
    the indices of the part's first and last unit. Example: "x a b a b a b a b a b y" with the first index 1,
    the last index 7 and the period 2 -> the stretch from index 1 up to, but not including, index 11.
    """
    start = first
    while start > 0 and keys[start - 1] == keys[start - 1 + period]:
        start -= 1
    end = last + 1
    while end < len(keys) and keys[end] == keys[end - period]:
        end += 1
    return Stretch(start, end, period)


# Copies of flagged words.

# Two copies of a word are close together if at most this many other words are between them.
_BETWEEN_COPIES = 2
# The words between close copies count as planted if each of these words occurs at least twice, and at least
# once for every four copies.
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
    """Return the indices of those copies of flagged words that do not look like ordinary use of the words.

    The copies of a word that occurs at least four times are included in these cases:

    - The word is common, has at least six copies, and its copies make up at least a fifth of the text.
    - The word is not common, there are many copies for the length of the text, and these copies have few
      neighbours in common.
    - The word is not common, and at least four successive copies are close together, with at most two words
      between neighbouring copies. If the words between these copies are repeated as well, these words are
      included.

    At least four consecutive flagged words are also included, even if the words differ, unless all of them
    are common.

    Args:
        document: The text.
        words: The keys of the flagged words.
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
        are_many = len(positions) >= min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES)
        if are_many and _have_few_common_neighbours(document, positions):
            copies.update(positions)
        for group in _close_groups(positions, 1 + _BETWEEN_COPIES, FEWEST_COPIES):
            copies.update(group)
            copies.update(_repeated_words_between(document, group))
    # Consecutive flagged words are a finding even if the words differ, unless all of them are common.
    for group in _close_groups(sorted(document.positions_of(words)), 1, FEWEST_COPIES):
        if not all(_is_common(document.keys[position]) for position in group):
            copies.update(group)
    return copies


def _have_few_common_neighbours(document: Document, positions: Sequence[int]) -> bool:
    """Return whether few copies of a word have the same word before or after them.

    In ordinary writing, many copies of a word share a neighbour, as in "the boundary layer". Planted copies
    share neighbours hardly more often than by chance.

    Args:
        document: The text.
        positions: The indices of the copies.
    """
    neighbours = document.neighbour_statistics(positions)
    most_matching_pairs = _MOST_MATCHING_PAIRS + _TIMES_CHANCE * neighbours.expected_pairs
    return neighbours.matching_pairs <= most_matching_pairs


def _is_common(key: str) -> bool:
    """Return whether a key is a common word or a single ASCII character."""
    return (len(key) == 1 and key.isascii()) or key in COMMON


def _close_groups(positions: Sequence[int], farthest: int, fewest: int) -> Iterator[Sequence[int]]:
    """Yield groups of at least ``fewest`` positions in which neighbours are at most ``farthest`` apart."""
    start = 0
    for number in range(1, len(positions) + 1):
        if number == len(positions) or positions[number] - positions[number - 1] > farthest:
            if number - start >= fewest:
                yield positions[start:number]
            start = number


def _repeated_words_between(document: Document, positions: Sequence[int]) -> list[int]:
    """Return the indices of the words between nearby copies, if each of these words is repeated often enough.

    Each of the words must occur at least twice, and at least once for every four copies. Up to two words
    before the first copy and after the last copy are included if they also occur between the copies, because
    a repeated pattern may extend there, as in "able to able by able to able by".

    Args:
        document: The text.
        positions: The indices of the copies.

    Returns:
        The indices in ascending order; empty if a word is not repeated often enough, or if there are fewer
        than four words in total, the minimum for a finding.
    """
    keys = document.keys
    start = positions[0]
    end = positions[-1] + 1
    words = set(keys[start:end])
    while start > max(0, positions[0] - _BETWEEN_COPIES) and keys[start - 1] in words:
        start -= 1
    while end < min(len(keys), positions[-1] + 1 + _BETWEEN_COPIES) and keys[end] in words:
        end += 1
    copies = set(positions)
    between = [position for position in range(start, end) if position not in copies]
    if len(between) < FEWEST_COPIES:
        return []
    counts = Counter(keys[position] for position in between)
    fewest = max(_FEWEST_REPEATED, len(positions) * _REPEATED_SHARE)
    return between if min(counts.values()) >= fewest else []


# Copies of unflagged words are only suspected, because a text also repeats its subject, such as "shock" in a
# text about shock waves. Three signs distinguish planted copies from a subject: there are many of them, their
# neighbours vary, and all have single spaces on both sides, whereas words in ordinary writing often adjoin
# punctuation and line ends.

# A word has many copies in a text if there are at least `_MANY_COPIES` of them, and at least one copy for
# every `_UNITS_PER_MANY` units of the text.
_MANY_COPIES = 8
_UNITS_PER_MANY = 60
# The copies are dense if there is at least one for every `_UNITS_PER_DENSE` units.
_UNITS_PER_DENSE = 5
# Many or dense copies seem planted only if at least this share of them has exactly one space on each side.
_SINGLE_SPACED_SHARE = 0.9
# A word with many copies counts as the subject of the text, not as planted, if the number of copy pairs that
# share a neighbour exceeds this multiple of the number expected by chance.
_TIMES_CHANCE_UNFLAGGED = 1.6
# Copies are regular if there are at least `_REGULAR_COPIES`, or `_REGULAR_CLOSE_COPIES` close together, and
# if the largest distance between neighbours is at most `_UNEVEN` times the smallest distance, plus one unit.
_REGULAR_COPIES = 6
_REGULAR_CLOSE_COPIES = 5
_UNEVEN = 1.2
# Regular copies seem planted only if at least this share of them has exactly one space on each side.
_REGULAR_SINGLE_SPACED_SHARE = 0.8
# Regular or dense copies seem planted only if at least this share of their neighbours are distinct words.
_VARIED_SHARE = 0.8
# A text is a list if at least this share of the copies stand on consecutive lines. The entries of a list may
# begin with the same word.
_LISTED_SHARE = 0.75


def planted_copies(document: Document, words: frozenset[str], repetitions: Iterable[Stretch]) -> set[int]:
    """Return the indices of copies of unflagged words that seem to have been planted.

    All copies of a word are included if their number or their even spacing suggests that they were planted.
    For all other words, each group of nearby copies is included if the spacing within the group suggests that
    these copies were planted.

    Args:
        document: The text.
        words: The keys of the flagged words, which are skipped.
        repetitions: Stretches that are already findings; copies in these stretches are ignored.
    """
    copies: set[int] = set()
    taken: set[int] = set()
    for stretch in repetitions:
        taken.update(range(stretch.first, stretch.end))
    for key, all_positions in document.positions.items():
        if len(all_positions) < FEWEST_COPIES or len(key) == 1 or key[0].isdigit():
            continue
        if _is_common(key) or key in words:
            continue
        free_positions = (
            [position for position in all_positions if position not in taken] if taken else all_positions
        )
        # The entries of a list may begin with the same word.
        if len(free_positions) < FEWEST_COPIES or document.are_on_consecutive_lines(free_positions):
            continue
        if _seem_planted_by_number(document, free_positions) or (
            len(free_positions) >= _REGULAR_COPIES and _seem_planted_by_spacing(document, free_positions)
        ):
            copies.update(free_positions)
            continue
        for group in _close_groups(free_positions, 1 + _BETWEEN_COPIES, _REGULAR_CLOSE_COPIES):
            if _seem_planted_by_spacing(document, group):
                copies.update(group)
    return copies


def _seem_planted_by_number(document: Document, positions: Sequence[int]) -> bool:
    """Return whether there are so many copies, with such varied neighbours, that they seem planted.

    Two kinds of copies seem planted: many copies whose neighbours match hardly more often than by chance, and
    dense copies whose neighbours are mostly distinct words. In both cases, nearly all copies must have
    exactly one space on each side. The constants above define "many" and "dense".
    """
    is_many = len(positions) >= max(_MANY_COPIES, len(document) / _UNITS_PER_MANY)
    is_dense = len(positions) >= len(document) / _UNITS_PER_DENSE
    if not (is_many or is_dense) or document.single_spaced_share(positions) < _SINGLE_SPACED_SHARE:
        return False
    neighbours = document.neighbour_statistics(positions)
    has_random_neighbours = neighbours.matching_pairs <= _TIMES_CHANCE_UNFLAGGED * neighbours.expected_pairs
    has_varied_neighbours = neighbours.distinct_share >= _VARIED_SHARE
    return (is_many and has_random_neighbours) or (is_dense and has_varied_neighbours)


def _seem_planted_by_spacing(document: Document, positions: Sequence[int]) -> bool:
    """Return whether copies are evenly spaced, with varied neighbours, so that they seem planted."""
    distances = [after - before for before, after in pairwise(positions)]
    if max(distances) > _UNEVEN * min(distances) + 1:
        return False
    is_varied = document.neighbour_statistics(positions).distinct_share >= _VARIED_SHARE
    return is_varied and document.single_spaced_share(positions) >= _REGULAR_SINGLE_SPACED_SHARE
