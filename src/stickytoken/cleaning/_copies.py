"""Find copies in a text: in a row, repeated as a phrase, or spread over the text."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from stickytoken.cleaning import _markup
from stickytoken.cleaning._common_words import COMMON
from stickytoken.cleaning._units import UnitReader, Units

# The constants below were chosen with `benchmarks/cleaning.py shares`: nearly all planted copies are found,
# but hardly any words of natural texts (Cranfield, TREC and STS-B).

# Minimum number of copies of a word for a finding. Three in a row can be emphasis ("very very very good").
FEWEST_COPIES = 4
# Minimum number of copies of a flagged word in a row, for a finding, and for one that no ordinary text
# contains. Two copies of a sticky token already hide a document (`benchmarks/typed_copies.py counts`), but
# two in a row may be a name ("Baden Baden"). Three of any uncommon word in a row occur in none of 1,400
# abstracts of Cranfield and 14,395 sentences of STS-B, and in two of 5,952 questions of TREC.
FEWEST_IN_ROW = 2
FEWEST_CERTAIN = 3


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
        text: The text, as `_markup.view_of` returns it.
        keys: The key (normalised form) of each unit. Units with equal keys are copies of each other.
        positions: The indices of the units with a key, for each key.
    """

    def __init__(self, text: str, reader: UnitReader) -> None:
        self.text = text
        self._reader = reader
        # Keys alone are read faster than units with their offsets. `reader.keys` returns None if a word
        # consists of several units.
        keys = reader.keys(text)
        self.keys = self.units.keys if keys is None else keys
        self.positions: dict[str, list[int]] = defaultdict(list)
        for position, key in enumerate(self.keys):
            self.positions[key].append(position)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def units(self) -> Units:
        """The units with their offsets in the text."""
        return self._reader.read(self.text)

    def gap(self, index: int) -> str:
        """Return the text before a unit; for the index after the last unit, the text after it."""
        start = self.units.ends[index - 1] if index else 0
        end = self.units.starts[index] if index < len(self) else len(self.text)
        return self.text[start:end]

    @cached_property
    def separators(self) -> list[str]:
        """The gaps of all units, followed by the text after the last unit."""
        gap_starts = [0, *self.units.ends]
        gap_ends = [*self.units.starts, len(self.text)]
        return [self.text[start:end] for start, end in zip(gap_starts, gap_ends, strict=True)]

    def joins(self, index: int) -> bool:
        """Return whether a unit and the one before it are in the same field, such as a line or a cell."""
        return 0 < index < len(self) and not _markup.divides(self.gap(index))

    def has_entity(self, index: int) -> bool:
        """Return whether a unit contains an HTML entity."""
        return _markup.PAD in self.text[self.units.starts[index] : self.units.ends[index]]

    def is_alone(self, index: int) -> bool:
        """Return whether a unit is the only one in its field."""
        return not self.joins(index) and not self.joins(index + 1)

    def is_attached(self, chain: range) -> bool:
        """Return whether punctuation alone joins units to another word, as in "0.6" or "ship's"."""
        outer_gaps = []
        if chain.start > 0:
            outer_gaps.append(self.gap(chain.start))
        if chain.stop < len(self):
            outer_gaps.append(self.gap(chain.stop))
        return any(gap and not any(map(str.isspace, gap)) for gap in outer_gaps)

    def chains(self, indices: Sequence[int]) -> Iterator[range]:
        """Divide units into groups that follow each other in the same field, and yield each as a range.

        Args:
            indices: The indices of the units, in ascending order.
        """
        start = 0  # position in `indices` of the first unit of the group
        for position in range(1, len(indices) + 1):
            is_end = position == len(indices) or indices[position] != indices[position - 1] + 1
            if is_end or not self.joins(indices[position]):
                yield range(indices[start], indices[position - 1] + 1)
                start = position

    @cached_property
    def chance_of_equality(self) -> float:
        """The probability that two units drawn at random, with replacement, are equal."""
        equal_pairs = sum(len(positions_of_word) ** 2 for positions_of_word in self.positions.values())
        all_pairs = max(1, len(self)) ** 2
        return equal_pairs / all_pairs

    def neighbour_statistics(self, positions: Sequence[int]) -> NeighbourStatistics:
        """Return statistics of the words next to copies, by which inserted ones are told from ordinary ones.

        Copies that were inserted at random have no more equal neighbours than chance gives; an ordinary word
        has more. Other copies of the word don't count as neighbours, and neither do words that punctuation
        separates from a copy.

        Args:
            positions: The indices of the copies.
        """
        keys = self.keys
        word = keys[positions[0]]
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        # All indices below are valid, because `_is_beside_previous` is false before the first unit and
        # after the last one.
        for position in positions:
            if self._is_beside_previous[position] and keys[position - 1] != word:
                before[keys[position - 1]] += 1
            if self._is_beside_previous[position + 1] and keys[position + 1] != word:
                after[keys[position + 1]] += 1
        matching_pairs = 0.0
        expected_pairs = 0.0
        for side in (before, after):
            # n copies with the same neighbour form n (n - 1) / 2 pairs.
            matching_pairs += sum(count * (count - 1) / 2 for count in side.values())
            neighbour_count = side.total()
            pairs_of_neighbours = neighbour_count * (neighbour_count - 1) / 2
            expected_pairs += pairs_of_neighbours * self.chance_of_equality
        distinct_share = (len(before) + len(after)) / max(1, before.total() + after.total())
        return NeighbourStatistics(matching_pairs, expected_pairs, distinct_share)

    def are_on_consecutive_lines(self, positions: Sequence[int]) -> bool:
        """Return whether most copies stand on consecutive lines, as in a list."""
        # The number of the line on which each copy stands.
        lines = [bisect(self._line_ends, self.units.starts[position]) for position in positions]
        steps_to_next_line = sum(after - before == 1 for before, after in pairwise(lines))
        return steps_to_next_line >= _LISTED_SHARE * (len(lines) - 1)

    def single_spaced_share(self, positions: Sequence[int]) -> float:
        """Return the share of copies with exactly one space on each side, as planted copies have."""
        return sum(self._is_single_spaced[position] for position in positions) / len(positions)

    @cached_property
    def _line_ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _is_beside_previous(self) -> list[bool]:
        """For each unit, whether only white space separates it from the unit before.

        The first entry is False, and so is an additional last entry, because no unit follows the last.
        """
        between_units = self.separators[1:-1]  # without the text before the first and after the last unit
        return [False, *map(str.isspace, between_units), False]

    @cached_property
    def _is_single_spaced(self) -> list[bool]:
        """For each unit, whether exactly one space, or an end of the text, is on each side of it."""
        # Most separators of a text are equal, so each distinct separator is examined only once.
        distinct = set(self.separators)
        # The slices have the character beside the space, and are empty if there is no such character.
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


# Repetitions

# Maximum length of a repeated phrase, in units.
_LONGEST_PERIOD = 16


class Stretch(NamedTuple):
    """A part of a text that repeats a word or phrase in one field."""

    first: int  # index of the first unit
    end: int  # index after the last unit
    period: int  # number of units of the repeated word or phrase


def find_stretches(document: Document, fewest: int) -> list[Stretch]:
    """Return the stretches of a text in order, without overlaps.

    Of overlapping stretches, the one that begins first is kept, and if both begin at the same unit, the
    longer.

    Args:
        document: The text.
        fewest: Minimum number of copies.
    """
    stretches: list[Stretch] = []
    keys = document.keys
    taken = bytearray(len(keys))  # 1 for each unit of a stretch
    steps = fewest - 1  # from the first to the last of ``fewest`` successive copies
    for positions in document.positions.values():
        if len(positions) < fewest:
            continue
        # Examine each group of ``fewest`` successive copies of the word. Example: the copies of "buy" in "buy
        # now buy now buy now buy now" have the positions 0, 2, 4 and 6. So four copies take 3 steps over a
        # distance of 6, which makes a period of 2.
        first_positions = positions[:-steps]
        last_positions = positions[steps:]
        for first, last in zip(first_positions, last_positions, strict=True):
            distance = last - first
            is_within_stretch = taken[first] and taken[last]
            if is_within_stretch or distance > steps * _LONGEST_PERIOD:
                continue
            period, remainder = divmod(distance, steps)
            has_even_steps = remainder == 0
            # A phrase is repeated if each unit equals the unit one period later.
            is_repeated = has_even_steps and keys[first : last - period] == keys[first + period : last]
            is_in_one_field = is_repeated and all(map(document.joins, range(first + 1, last + 1)))
            if not is_in_one_field:
                continue
            stretch = _extend_stretch(document, first, last, period)
            unit_count = stretch.end - stretch.first
            # The last copy of the word need not be followed by the rest of its phrase.
            has_whole_phrases = unit_count >= fewest * period
            if has_whole_phrases:
                stretches.append(stretch)
                taken[stretch.first : stretch.end] = b"\1" * unit_count
    disjoint: list[Stretch] = []
    for stretch in sorted(stretches, key=lambda stretch: (stretch.first, -stretch.end)):
        if not disjoint or stretch.first >= disjoint[-1].end:
            disjoint.append(stretch)
    return disjoint


def _extend_stretch(document: Document, first: int, last: int, period: int) -> Stretch:
    """Return the stretch that repeats the units from ``first`` to ``last``, extended on both sides.

    It is extended as long as the next unit is in the same field, and equals the unit one period away.
    """
    keys = document.keys
    start = first
    while start > 0 and keys[start - 1] == keys[start - 1 + period] and document.joins(start):
        start -= 1
    end = last + 1
    while end < len(keys) and keys[end] == keys[end - period] and document.joins(end):
        end += 1
    return Stretch(start, end, period)


# Copies of flagged words.

# Two copies of a word are close together if at most this many other words are between them.
_BETWEEN_COPIES = 2
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


def find_flagged_runs(document: Document, flagged: Mapping[str, str]) -> list[range]:
    """Return the runs of flagged words: at least two units in a row, in the same field.

    A run of different words has each of them twice on average, because flagged words that stand once each in
    a row, as in a list, are no copies. Common words are in no run.

    Args:
        document: The text.
        flagged: The flagged words, keyed as in ``document.keys``.
    """
    indices: list[int] = []
    for key in flagged.keys() & document.positions.keys():
        if not is_common(key):
            indices += document.positions[key]
    if len(indices) < FEWEST_IN_ROW:
        return []
    runs = []
    for chain in document.chains(sorted(indices)):
        distinct = len(set(document.keys[chain.start : chain.stop]))
        if len(chain) >= max(FEWEST_IN_ROW, 2 * distinct):
            runs.append(chain)
    return runs


def find_scattered_copies(document: Document, flagged: Mapping[str, str]) -> set[int]:
    """Return the indices of those copies of flagged words that do not look like ordinary use of the words.

    The copies of a word that occurs at least four times are included in these cases:

    - The word is common, has at least six copies, and its copies make up at least a fifth of the text.
    - The word is not common, there are many copies for the length of the text, and these copies have few
      neighbours in common.
    - The word is not common, and at least four successive copies are close together, with at most two words
      between neighbouring copies.
    """
    copies: set[int] = set()
    for key in flagged.keys() & document.positions.keys():
        positions = document.positions[key]
        if len(positions) < FEWEST_COPIES:
            continue
        if is_common(key):
            if len(positions) >= max(_COMMON_COPIES, _COMMON_SHARE * len(document)):
                copies.update(positions)
            continue
        are_many = len(positions) >= min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES)
        if are_many and _have_few_common_neighbours(document, positions):
            copies.update(positions)
    return copies | find_close_copies(document, flagged)


def find_close_copies(document: Document, flagged: Mapping[str, str]) -> set[int]:
    """Return the indices of the copies of flagged, uncommon words that are close together.

    There are at least four, with at most two words between neighbouring copies.
    """
    copies: set[int] = set()
    for key in flagged.keys() & document.positions.keys():
        if not is_common(key):
            for group in _find_close_groups(document.positions[key], 1 + _BETWEEN_COPIES, FEWEST_COPIES):
                copies.update(group)
    return copies


def _have_few_common_neighbours(document: Document, positions: Sequence[int]) -> bool:
    neighbours = document.neighbour_statistics(positions)
    most_matching_pairs = _MOST_MATCHING_PAIRS + _TIMES_CHANCE * neighbours.expected_pairs
    return neighbours.matching_pairs <= most_matching_pairs


def is_common(key: str) -> bool:
    """Return whether a key is a common word, a single ASCII character or punctuation."""
    is_punctuation = key.isascii() and not any(map(str.isalnum, key))
    return (len(key) == 1 and key.isascii()) or is_punctuation or key.casefold() in COMMON


def _find_close_groups(positions: Sequence[int], farthest: int, fewest: int) -> Iterator[Sequence[int]]:
    start = 0  # where the group begins in `positions`
    for end in range(1, len(positions) + 1):
        is_end = end == len(positions) or positions[end] - positions[end - 1] > farthest
        if is_end:
            if end - start >= fewest:
                yield positions[start:end]
            start = end


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
_MOST_TIMES_CHANCE = 1.6
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


def find_planted_copies(
    document: Document, unsuspected: Collection[str], repetitions: Iterable[Stretch]
) -> set[int]:
    """Return the indices of copies of unflagged words that seem to have been planted.

    All copies of a word are included if their number or their even spacing suggests that they were planted.
    For all other words, each group of nearby copies is included if the spacing within the group suggests that
    these copies were planted.

    Args:
        document: The text.
        unsuspected: The keys of the flagged and the allowed words.
        repetitions: Stretches that are already findings; copies in these stretches are ignored.
    """
    copies: set[int] = set()
    in_repetitions: set[int] = set()
    for stretch in repetitions:
        in_repetitions.update(range(stretch.first, stretch.end))
    for key, all_positions in document.positions.items():
        is_symbol_or_number = len(key) == 1 or key[0].isdigit()
        if len(all_positions) < FEWEST_COPIES or is_symbol_or_number:
            continue
        if is_common(key) or key in unsuspected:
            continue
        free_positions = [position for position in all_positions if position not in in_repetitions]
        # The entries of a list may begin with the same word.
        if len(free_positions) < FEWEST_COPIES or document.are_on_consecutive_lines(free_positions):
            continue
        seem_planted = _seem_planted_by_number(document, free_positions)
        if not seem_planted and len(free_positions) >= _REGULAR_COPIES:
            seem_planted = _seem_planted_by_spacing(document, free_positions)
        if seem_planted:
            copies.update(free_positions)
            continue
        for group in _find_close_groups(free_positions, 1 + _BETWEEN_COPIES, _REGULAR_CLOSE_COPIES):
            if _seem_planted_by_spacing(document, group):
                copies.update(group)
    # A word that is alone in its cell or line is data.
    return {position for position in copies if not document.is_alone(position)}


def _seem_planted_by_number(document: Document, positions: Sequence[int]) -> bool:
    is_many = len(positions) >= max(_MANY_COPIES, len(document) / _UNITS_PER_MANY)
    is_dense = len(positions) >= len(document) / _UNITS_PER_DENSE
    if not (is_many or is_dense) or document.single_spaced_share(positions) < _SINGLE_SPACED_SHARE:
        return False
    neighbours = document.neighbour_statistics(positions)
    has_random_neighbours = neighbours.matching_pairs <= _MOST_TIMES_CHANCE * neighbours.expected_pairs
    has_varied_neighbours = neighbours.distinct_share >= _VARIED_SHARE
    return (is_many and has_random_neighbours) or (is_dense and has_varied_neighbours)


def _seem_planted_by_spacing(document: Document, positions: Sequence[int]) -> bool:
    distances = [after - before for before, after in pairwise(positions)]
    is_even = max(distances) <= _UNEVEN * min(distances) + 1
    if not is_even:
        return False
    is_varied = document.neighbour_statistics(positions).distinct_share >= _VARIED_SHARE
    return is_varied and document.single_spaced_share(positions) >= _REGULAR_SINGLE_SPACED_SHARE
