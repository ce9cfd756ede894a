"""Find what does not belong in a text: copies of sticky tokens, text of special tokens, and runs.

One natural occurrence of a flagged word is no finding: a word has a meaning, whatever it does to a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from stickytoken.cleaning._flagged import FEWEST_COPIES, flagged_copies, mixed_runs
from stickytoken.cleaning._repeats import Stretch, positions_of, stretches_of
from stickytoken.cleaning._specials import find_specials, special_pattern
from stickytoken.cleaning._units import Units, read_keys, read_units
from stickytoken.cleaning._words import WordReader
from stickytoken.cleaning.rules import CleaningRules

_FINDERS = 32
_MANY_SHORT = 12


class SpanKind(StrEnum):
    """Why a span was found."""

    FLAGGED = "flagged"
    """Copies of a flagged word, and what is repeated between them."""
    SPECIAL = "special"
    """Text of a special token."""
    RUN = "run"
    """A word or phrase without a flag, repeated more often than ordinary text does."""
    INTERLEAVED = "interleaved"
    """A copy of a word without a flag that stands among other words at regular distances."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last character.
        kind: Why it was found.
        what: The word, phrase or special token, in lower case for all but the last.
        count: How many copies the span holds.
        first_end: Where the first copy ends; collapsing a run keeps the text up to here.
    """

    start: int
    end: int
    kind: SpanKind
    what: str
    count: int
    first_end: int


def find_spans(text: str, rules: CleaningRules) -> list[Span]:
    """Find the spans of a text that the rules are about.

    The time is linear in the length of the text, whatever is in it.

    Args:
        text: Any text.
        rules: What to look for.

    Returns:
        Spans in order, which do not overlap.
    """
    return _finder(rules).find(text)


class _Finder:
    """Rules, prepared for many texts."""

    def __init__(self, rules: CleaningRules) -> None:
        self._specials = special_pattern(rules.specials)
        reader = WordReader(())
        keys = (tuple(read_keys(word, reader)) for word in rules.words)
        self._words = frozenset(key[0] for key in keys if len(key) == 1)
        self._reader = WordReader(self._words)
        self._copies = rules.longest_run + 1

    def find(self, text: str) -> list[Span]:
        """Find the spans of a text."""
        specials = [
            Span(start, end, SpanKind.SPECIAL, what, 1, end)
            for start, end, what in find_specials(text, self._specials)
        ]
        spans = list(self._in_units(text))
        if not specials or not spans:
            return spans or specials
        return _without_overlaps(specials, spans)

    def _in_units(self, text: str) -> Iterator[Span]:
        keys = read_keys(text, self._reader)
        fewest = min(self._copies, FEWEST_COPIES)
        if len(keys) < fewest:
            return
        positions = positions_of(keys, fewest)
        runs = [
            each for each in stretches_of(keys, positions, self._copies) if self._is_conspicuous(keys, each)
        ]
        flagged = flagged_copies(positions, len(keys), self._words)
        for stretch in mixed_runs(keys, self._words):
            flagged.update(stretch)
        if runs or flagged:
            yield from _spans_of(read_units(text, self._reader), runs, flagged)

    def _is_conspicuous(self, keys: Sequence[str], stretch: Stretch) -> bool:
        """Whether a stretch is more than a row of numbers or single letters, as tables have them."""
        words = set(keys[stretch.first : stretch.last])
        if any(len(word) > 1 and not word.isdigit() for word in words):
            return True
        return not words.isdisjoint(self._words) or stretch.last - stretch.first >= _MANY_SHORT


def _spans_of(units: Units, runs: list[Stretch], flagged: set[int]) -> Iterator[Span]:
    """Turn runs and flagged copies into spans, in order."""
    keys = units.keys
    found: list[Span] = []
    for run in runs:
        places = range(run.first, run.last)
        words = [keys[place] for place in places if place in flagged]
        flagged.difference_update(places)
        if words:
            found.append(_span(units, places, SpanKind.FLAGGED, words[0], len(words), len(places)))
        else:
            copies = len(places) // run.period
            what = " ".join(keys[run.first : run.first + run.period])
            found.append(_span(units, places, SpanKind.RUN, what, copies, run.period))
    found += [
        _span(units, group, SpanKind.FLAGGED, keys[group[0]], len(group), 1)
        for group in _neighbours(sorted(flagged))
    ]
    yield from sorted(found, key=lambda span: span.start)


def _span(units: Units, places: range, kind: SpanKind, what: str, count: int, first: int) -> Span:
    return Span(
        units.starts[places[0]],
        units.ends[places[-1]],
        kind,
        what,
        count,
        units.ends[places[first - 1]],
    )


def _neighbours(places: list[int]) -> Iterator[range]:
    """Group places that follow each other."""
    start = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] != places[number - 1] + 1:
            yield range(places[start], places[number - 1] + 1)
            start = number


def _without_overlaps(specials: list[Span], others: list[Span]) -> list[Span]:
    """Merge two lists in order; of two that overlap the longer is kept."""
    kept: list[Span] = []
    for span in sorted([*specials, *others], key=lambda each: (each.start, -each.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
        elif span.end - span.start > kept[-1].end - kept[-1].start:
            kept[-1] = span
    return kept


@lru_cache(maxsize=_FINDERS)
def _finder(rules: CleaningRules) -> _Finder:
    return _Finder(rules)
