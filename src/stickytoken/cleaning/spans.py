"""Find copies of sticky tokens, special tokens written as text, and repetitions in a text.

A single natural occurrence of a flagged word is not a finding, because flagged words also occur in ordinary
text.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

from stickytoken.cleaning import _copies
from stickytoken.cleaning._characters import INVISIBLE
from stickytoken.cleaning._units import UnitReader
from stickytoken.cleaning.rules import CleaningRules, alternation
from stickytoken.errors import InputError
from stickytoken.validation import shown


class SpanKind(StrEnum):
    """The kinds of findings in order of precedence: where spans overlap, the kind listed first wins."""

    FLAGGED = "flagged"
    """Copies of a flagged word, and words that are repeated between the copies."""
    SPECIAL = "special"
    """Text of a special token."""
    REPETITION = "repetition"
    """An unflagged word or phrase, repeated more often than in ordinary text."""
    SUSPECTED = "suspected"
    """A copy of an unflagged word that seems to have been inserted among other words."""

    @property
    def phrase(self) -> str:
        """The kind as a phrase for use in a sentence."""
        return _PHRASES[self]

    @property
    def cause(self) -> str:
        """The name of the kind in counts of documents, such as "repetition: 2"."""
        return _CAUSES[self]


_PHRASES = {
    SpanKind.FLAGGED: "copies of a flagged token",
    SpanKind.SPECIAL: "the text of a special token",
    SpanKind.REPETITION: "a repetition of another word or phrase",
    SpanKind.SUSPECTED: "suspected copies of another word",
}

_CAUSES = {
    SpanKind.FLAGGED: "flagged token",
    SpanKind.SPECIAL: "special token",
    SpanKind.REPETITION: "repetition",
    SpanKind.SUSPECTED: "suspected copies",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text.

    Attributes:
        start: Offset of the first character.
        end: Offset after the last character.
        kind: Kind of the finding.
        what: The word or phrase in lower case, or the special token.
        count: Number of copies in the span.
        first_end: Offset after the first copy. Cleaning keeps the first copy of a repetition.
    """

    start: int
    end: int
    kind: SpanKind
    what: str
    count: int
    first_end: int


def find_spans(text: str, rules: CleaningRules) -> list[Span]:
    """Find the spans of a text that match the rules.

    The time is linear in the length of the text, even for adversarial texts. A text of more than a million
    characters is searched in segments.

    Args:
        text: Any text.
        rules: What to look for.

    Returns:
        The spans in order, without overlaps.
    """
    return finder_of(rules).find(text)


# Length of a segment, in characters. Longer texts are searched in segments to limit memory use.
_SEGMENT = 1_000_000
# A segment is shortened by up to this many characters so that it ends at a space.
_CUT_WITHIN = 1_000


class SpanFinder:
    """Searches texts for the words, special tokens and repetitions that the rules describe."""

    def __init__(self, rules: CleaningRules) -> None:
        self.specials = SpecialFinder(rules.specials)
        self._reader = UnitReader(rules.words)
        # Minimum number of copies that form a repetition.
        self._fewest_repeated = rules.longest_run + 1

    def find(self, text: str, *, every_flagged: bool = False) -> list[Span]:
        """Return the spans of a text in order, without overlaps.

        Args:
            text: Any text.
            every_flagged: Whether to find single occurrences of flagged words too.
        """
        specials = list(self.specials.find(text))
        # Replace special tokens by spaces, which preserves the offsets and separates the surrounding words.
        blanked = []
        done = 0
        for special in specials:
            blanked += [text[done : special.start], " " * (special.end - special.start)]
            done = special.end
        blanked.append(text[done:])
        others = self._find_words("".join(blanked), every_flagged)
        # Of overlapping spans, keep the span whose kind takes precedence. Of spans of the same kind, keep the
        # span that begins first and, if both begin at the same offset, the longer one.
        kept_spans: list[Span] = []
        for span in sorted([*specials, *others], key=lambda span: (span.start, -span.end)):
            while kept_spans and span.start < kept_spans[-1].end and _precedes(span, kept_spans[-1]):
                kept_spans.pop()
            if not kept_spans or span.start >= kept_spans[-1].end:
                kept_spans.append(span)
        return kept_spans

    def _find_words(self, text: str, every_flagged: bool) -> list[Span]:
        """Search a text segment by segment, and return its spans in order.

        Special tokens are not searched for; the caller must have replaced them by spaces.
        """
        spans: list[Span] = []
        for start, end in _segments(text):
            in_segment = sorted(
                self._find_in_segment(text[start:end], start, every_flagged), key=lambda span: span.start
            )
            if spans and in_segment:
                # Join the two parts of a span that a boundary between segments has split. If the boundary
                # lies within a copy of "buy now", the second part repeats "now buy", so the order of the
                # words does not matter.
                last = spans[-1]
                first = in_segment[0]
                same_words = sorted(last.what.split()) == sorted(first.what.split())
                if last.kind is first.kind and same_words and not text[last.end : first.start].strip():
                    spans.pop()
                    in_segment[0] = replace(last, end=first.end, count=last.count + first.count)
            spans += in_segment
        return spans

    def _find_in_segment(self, text: str, offset: int, every_flagged: bool) -> Iterator[Span]:
        """Yield the spans in one segment of a long text, in no particular order. The spans may overlap.

        Args:
            text: The segment, in which spaces replace special tokens.
            offset: Where the segment starts in the whole text.
            every_flagged: Whether to find every occurrence of a flagged word, including single ones.
        """
        document = _copies.Document(text, self._reader)
        words = self._reader.flagged
        keys = document.keys
        # A text with fewer units than `fewest` has no findings, unless ``every_flagged`` is set.
        fewest = min(self._fewest_repeated, _copies.FEWEST_COPIES)
        if len(keys) < fewest and not every_flagged:
            return
        flagged = document.positions_of(words) if every_flagged else _copies.flagged_copies(document, words)
        repeated_words = {
            key: positions for key, positions in document.positions.items() if len(positions) >= fewest
        }
        if not repeated_words and not flagged:
            return
        # A stretch repeats a phrase, or a few words in varying order (period 0).
        stretches = _copies.stretches_of(keys, repeated_words, self._fewest_repeated)
        repetitions = [stretch for stretch in stretches if self._is_repetition(document, stretch)]
        # Copies of unflagged words that seem to be inserted between other words.
        suspected = _copies.planted_copies(document, words, repetitions)

        def span(positions: range, kind: SpanKind, what: str, count: int, first_copy: int) -> Span:
            """Return the span of consecutive units, with offsets in the whole text.

            Args:
                positions: The indices of the units.
                kind: Kind of the finding.
                what: The word or phrase.
                count: Number of copies.
                first_copy: Number of units in the first copy.
            """
            units = document.units
            return Span(
                start=offset + units.starts[positions[0]],
                end=offset + units.ends[positions[-1]],
                kind=kind,
                what=what,
                count=count,
                first_end=offset + units.ends[positions[first_copy - 1]],
            )

        for stretch in repetitions:
            positions = range(stretch.first, stretch.end)
            stretch_keys = keys[stretch.first : stretch.end]
            if stretch.period == 1 and stretch_keys[0] in words:
                # Only a flagged word is repeated, so its copies are grouped below with adjoining copies of
                # other flagged words.
                flagged.update(positions)
                continue
            # The whole stretch becomes one span, so its units must not be grouped again below.
            flagged.difference_update(positions)
            yield span(positions, *_finding_of(stretch_keys, stretch.period, words))
        for group in _groups(document, sorted(flagged)):
            yield span(group, SpanKind.FLAGGED, keys[group[0]], len(group), 1)
        for group in _groups(document, sorted(suspected - flagged)):
            yield span(group, SpanKind.SUSPECTED, keys[group[0]], len(group), 1)

    def _is_repetition(self, document: _copies.Document, stretch: _copies.Stretch) -> bool:
        """Return whether a stretch is a repetition and not ordinary text, a table or code."""
        keys = document.keys[stretch.first : stretch.end]
        words = set(keys)
        if not words.isdisjoint(self._reader.flagged):
            return True
        # Different words of at most two letters are symbols or abbreviations, as in "o, o, n, n, no, no". The
        # words next to the stretch are included, because the stretch may be part of a longer list of symbols.
        around = {*words, *document.keys[max(0, stretch.first - 1) : stretch.end + 1]}
        if len(around) > 1 and all(len(word) <= 2 and word.isascii() for word in around):
            return False
        is_too_short = len(keys) < self._fewest_repeated * stretch.period
        if is_too_short:
            return False
        # Tables and formulas naturally repeat numbers, single letters, such as "x" or "xx", and placeholders.
        counts = Counter(keys)
        repeated = [word for word in words if counts[word] > 1 and word not in _PLACEHOLDERS]
        if all(word[0].isdigit() or (word.isascii() and len(set(word)) == 1) for word in repeated):
            return False
        return not _is_structured(document, stretch)


finder_of = lru_cache(maxsize=32)(SpanFinder)


def _finding_of(keys: Sequence[str], period: int, words: frozenset[str]) -> tuple[SpanKind, str, int, int]:
    """Return how a stretch of repeated words is reported.

    Args:
        keys: The keys of the stretch's units.
        period: Number of units of the repeated word or phrase; 0 if a few words are repeated in varying
            order.
        words: The keys of the flagged words.

    Returns:
        The kind of the finding, the word or phrase that is named, its number of copies, and the number of
        units in the first copy.
    """
    flagged_keys = [key for key in keys if key in words]
    if flagged_keys:
        # The first copy matters only in a repetition, where cleaning keeps it.
        return SpanKind.FLAGGED, flagged_keys[0], len(flagged_keys), len(keys)
    if period:
        return SpanKind.REPETITION, " ".join(keys[:period]), len(keys) // period, period
    word, copies = Counter(keys).most_common(1)[0]
    kind = SpanKind.REPETITION if len(keys) >= _copies.MIXED_RUN else SpanKind.SUSPECTED
    return kind, word, copies, 1


def _precedes(span: Span, other: Span) -> bool:
    """Return whether the kind of one span takes precedence over the kind of another."""
    kinds = list(SpanKind)
    return kinds.index(span.kind) < kinds.index(other.kind)


def _segments(text: str) -> list[tuple[int, int]]:
    """Return the start and end (exclusive) of segments of roughly equal length that make up a text.

    The segments end at spaces if possible.
    """
    count = math.ceil(len(text) / _SEGMENT)
    bounds = [0]
    for number in range(1, count):
        offset = number * len(text) // count
        space = text.rfind(" ", offset - _CUT_WITHIN, offset)
        bounds.append(offset if space < 0 else space)
    return list(pairwise([*bounds, len(text)]))


# Words that represent values in tables and code.
_PLACEHOLDERS = frozenset(("nan", "inf", "nil", "null", "none", "true", "false"))
# Characters that stand between words in code and in tables drawn with text characters.
_CODE = frozenset("=()[]{}<>\"'*@#\\\u2502\u2506")
# The characters in `_CODE`, and characters that join the parts of names and paths.
_CODE_OR_PATH = _CODE | frozenset("_:/|")
# A stretch is code if at least `_CODE_SHARE` of the gaps between its words contain a `_CODE` character, or if
# at least `_CODE_OR_PATH_SHARE` of them contain a `_CODE_OR_PATH` character.
_CODE_SHARE = 0.25
_CODE_OR_PATH_SHARE = 0.5
# Maximum number of copies of a phrase in a hyphenated compound, such as "dict-of-dict-of-dict-of-dict".
_COMPOUND = 4


def _is_structured(document: _copies.Document, stretch: _copies.Stretch) -> bool:
    """Return whether a stretch is code, a table, a list of lines or a hyphenated compound.

    The answer depends on the separators, which are the text before, between and after the words of the
    stretch. If a single word is repeated (period 1), the stretch is structured only if its separators contain
    the characters of code or of a table.
    """
    # The separators between the words, and all separators, with those before and after the stretch.
    between = document.separators[stretch.first + 1 : stretch.end]
    between_and_around = document.separators[stretch.first : stretch.end + 1]
    with_code = sum(not _CODE.isdisjoint(separator) for separator in between_and_around)
    if with_code >= _CODE_SHARE * len(between_and_around):  # code, or a table drawn with text characters
        return True
    if stretch.period == 1:
        return False
    if set(between) == {"-"} and len(between) < _COMPOUND * stretch.period:  # a hyphenated compound
        return True
    # In a list of lines, line breaks separate all copies of a phrase. If the order of the words varies
    # (period 0), line breaks separate all words, except that one line break may be missing.
    if stretch.period:
        copies = (stretch.end - stretch.first) // stretch.period
        needed_breaks = copies - 1
    else:
        needed_breaks = len(between) - 1
    line_breaks = sum("\n" in separator for separator in between)
    with_code_or_path = sum(not _CODE_OR_PATH.isdisjoint(separator) for separator in between)
    return line_breaks >= needed_breaks or with_code_or_path >= _CODE_OR_PATH_SHARE * len(between)


def _groups(document: _copies.Document, positions: list[int]) -> Iterator[range]:
    """Yield groups of consecutive unit positions, split at a ".", "?" or "!" that has a space before it.

    A punctuation mark directly after a word does not end a group, because copies may be separated by
    punctuation: "able. able. able."

    Args:
        document: The text.
        positions: The positions of the units to group, in ascending order.
    """
    if not positions:
        return
    separators = document.separators
    first = last = positions[0]
    for position in positions[1:]:
        text_before = separators[position]
        marks = text_before.strip()
        is_split = bool(marks) and text_before[0].isspace() and set(marks) <= set(".?!")
        if position != last + 1 or is_split:
            yield range(first, last + 1)
            first = position
        last = position
    yield range(first, last + 1)


_DISGUISED = re.compile(f"[{INVISIBLE}\uff01-\uff5e]")
_INVISIBLE_CHARACTERS = re.compile(f"[{INVISIBLE}]+")
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}  # full-width forms of ASCII characters


class SpecialFinder:
    """Finds special tokens written as text, even in full width or with invisible characters inside."""

    def __init__(self, specials: Iterable[str]) -> None:
        texts = {text.strip() for text in specials}
        source = alternation(texts)
        # Match consecutive tokens together.
        self._pattern = re.compile(rf"(?P<first>{source})(?:\s*(?:{source}))*") if source else None
        self._single = re.compile(source)
        # If a token is split in two, neither part has more than this many characters.
        self._reach = max(map(len, texts), default=1) - 1

    def find(self, text: str) -> Iterator[Span]:
        """Yield the spans of special tokens in order; consecutive tokens form one span."""
        if self._pattern is None:
            return
        plain, positions = _plain(text)
        for match in self._pattern.finditer(plain):
            alone = match.end() == match.end("first")
            copies = 1 if alone else sum(1 for _ in self._single.finditer(plain, *match.span()))
            yield Span(
                start=positions[match.start()],
                end=positions[match.end() - 1] + 1,
                kind=SpanKind.SPECIAL,
                what=match["first"],
                count=copies,
                first_end=positions[match.end("first") - 1] + 1,
            )

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the offset and the text of each special token."""
        if self._pattern is not None:
            plain, positions = _plain(text)
            for match in self._single.finditer(plain):
                yield positions[match.start()], match.group()

    def find_nested(self, text: str) -> list[tuple[int, int, str]]:
        """Return the parts to remove so that no special token is left.

        A removal joins the text before and after the removed token, which can form a new special token, as in
        ``<|endof<|endoftext|>text|>``. Only the text around a removed token is searched again, so the time is
        linear in the length of the text, however deeply the tokens are nested.

        Returns:
            The parts in order. Each part is given by its start, its end (exclusive) and the first special
            token that was found in it.
        """
        # All offsets below are offsets in ``plain``, which lacks the text's invisible characters. `positions`
        # has the offset in ``text`` of each character of ``plain``.
        plain, positions = _plain(text)
        if self._pattern is None or not self._pattern.search(plain):
            return []
        kept_ranges: list[tuple[int, int]] = []  # start and end of the parts of the plain text that stay
        # The first token of each removed part. The key is the offset at which the part begins, which is also
        # the end of the kept range before the part (0 if there is none).
        first_tokens: dict[int, str] = {}
        position = 0  # end of the text that has been searched
        while match := self._pattern.search(plain, position):
            if match.start() > position:
                kept_ranges.append((position, match.start()))
            position = match.end()
            # The removal may have formed a special token from the end of the kept text and the beginning of
            # the text after the removed part. Extend the removed part on both sides to remove this token too,
            # and repeat this for the next token that is formed.
            while spanning := self._token_across(self._pattern, plain, kept_ranges, position):
                characters_before, characters_after = spanning
                _shorten(kept_ranges, characters_before)
                position += characters_after
            kept_end = kept_ranges[-1][1] if kept_ranges else 0
            first_tokens[kept_end] = match["first"]
        if position < len(plain):
            kept_ranges.append((position, len(plain)))
        # The removed parts are the gaps between kept ranges. Convert their offsets to offsets in ``text``, so
        # that a removed part includes the invisible characters next to it.
        parts = []
        for (_, kept_end), (next_start, _) in pairwise([(0, 0), *kept_ranges, (len(plain), len(plain))]):
            if kept_end in first_tokens and next_start > kept_end:
                start = positions[kept_end - 1] + 1 if kept_end else 0
                end = positions[next_start] if next_start < len(plain) else len(text)
                parts.append((start, end, first_tokens[kept_end]))
        return parts

    def _token_across(
        self, pattern: re.Pattern[str], plain: str, kept_ranges: Sequence[tuple[int, int]], position: int
    ) -> tuple[int, int] | None:
        """Find a special token that begins before a removed part of a text and continues after this part.

        Args:
            pattern: The special tokens.
            plain: The text.
            kept_ranges: Start and end of each part of ``plain`` that is kept and lies before the removed
                part.
            position: The offset in ``plain`` after the removed part.

        Returns:
            How many characters of the token come before the removed part, and how many come after it; None if
            there is no such token.
        """
        # A special token that consists of text on both sides of the removed part has at most `_reach`
        # characters on each side. Collect this many characters from the end of the kept text, which may be
        # spread over several ranges.
        pieces: list[str] = []
        missing = self._reach
        for start, end in reversed(kept_ranges):
            pieces.append(plain[max(start, end - missing) : end])
            missing -= end - start
            if missing <= 0:
                break
        before = "".join(reversed(pieces))
        match = pattern.search(before + plain[position : position + self._reach])
        # The kept text contains no complete special token, so a token that begins in the kept text extends
        # beyond the removed part.
        if match is None or match.start() >= len(before):
            return None
        return len(before) - match.start(), match.end() - len(before)


def _shorten(ranges: list[tuple[int, int]], characters: int) -> None:
    """Shorten the ranges by ``characters`` characters in total, from the last range backwards, in place."""
    while characters > 0:
        start, end = ranges.pop()
        if end - start > characters:
            ranges.append((start, end - characters))
        characters -= end - start


def _plain(text: str) -> tuple[str, Sequence[int]]:
    """Remove invisible characters from a text, and convert full-width characters to half width.

    Returns:
        The new text, and the offset in the original text of each character of the new text.
    """
    if text.isascii() or not _DISGUISED.search(text):
        return text, range(len(text))
    plain = _INVISIBLE_CHARACTERS.sub("", text).translate(_NARROW)
    if len(plain) == len(text):
        return plain, range(len(text))
    positions = array("q")
    done = 0
    for match in _INVISIBLE_CHARACTERS.finditer(text):
        positions.extend(range(done, match.start()))
        done = match.end()
    positions.extend(range(done, len(text)))
    return plain, positions


Kind = TypeVar("Kind", bound=StrEnum)


class Action(StrEnum):
    """What to do with a finding."""

    REMOVE = "remove"
    """Remove the finding, except for the first copy of a repetition."""
    REPLACE = "replace"
    """Write the replacement instead of the finding, except for the first copy of a repetition."""
    ESCAPE = "escape"
    """Insert a space after the first character, so that tokenizers no longer read the special token."""
    REPORT = "report"
    """Leave the finding in the text and report it."""
    REFUSE = "refuse"
    """Raise an error instead of returning a text."""


# Suspected copies may be ordinary occurrences of a word, so by default they are only reported.
DEFAULT_ACTIONS: Mapping[SpanKind, Action] = MappingProxyType(
    {
        SpanKind.FLAGGED: Action.REMOVE,
        SpanKind.SPECIAL: Action.REMOVE,
        SpanKind.REPETITION: Action.REMOVE,
        SpanKind.SUSPECTED: Action.REPORT,
    }
)


def actions_of(values: Mapping[Any, str]) -> dict[SpanKind, Action]:
    """Return the action for every kind of finding, keyed by kind.

    A kind that ``values`` leaves out gets its default action. Kinds and actions can be given by name.

    Raises:
        InputError: A kind or action is unknown, or the action does not apply to the kind.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"actions is {shown(values)}: pass a mapping such as {{'special': 'escape'}}")
    actions = dict(DEFAULT_ACTIONS)
    for name, value in values.items():
        kind = _member(SpanKind, "kind of finding", name)
        action = _member(Action, "action", value)
        if action is Action.ESCAPE and kind is not SpanKind.SPECIAL:
            raise InputError(f"the action for {kind.value} is escape: only special tokens can be escaped")
        actions[kind] = action
    return actions


def _member(kinds: type[Kind], what: str, value: Any) -> Kind:
    """Return the member with this value, or raise InputError; ``what`` names the members in the message."""
    try:
        return kinds(value)
    except ValueError:
        names = ", ".join(kind.value for kind in kinds)
        raise InputError(f"{shown(value)} is not a known {what}: use one of {names}") from None
