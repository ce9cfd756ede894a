"""Find what does not belong in a text: copies of sticky tokens, text of special tokens, and runs.

One natural occurrence of a flagged word is no finding: a word has a meaning, whatever it does to a model.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, TypeVar

from stickytoken.cleaning import _copies
from stickytoken.cleaning.rules import CleaningRules, alternation
from stickytoken.errors import InputError
from stickytoken.validation import shown

_SEGMENT = 1_000_000
_CODE = frozenset("=()[]{}<>\"'*@#\\\u2502\u2506")
_NAMES = _CODE | frozenset("_:/|")
_VALUES = frozenset(("nan", "inf", "nil", "null", "none", "true", "false"))


class SpanKind(StrEnum):
    """Why a span was found."""

    FLAGGED = "flagged"
    """Copies of a flagged word, and what is repeated between them."""
    SPECIAL = "special"
    """Text of a special token."""
    RUN = "run"
    """A word or phrase without a flag, repeated more often than ordinary text does."""
    INTERLEAVED = "interleaved"
    """A copy of a word without a flag that was put among other words, as far as one can tell."""

    @property
    def phrase(self) -> str:
        """The kind as a phrase in a sentence."""
        return {
            "flagged": "copies of a sticky token",
            "special": "the text of a special token",
            "run": "a run of a word or phrase",
            "interleaved": "copies of a word among other words",
        }[self]


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
    """Find the spans of a text that match the rules.

    The time is linear in the length of the text, whatever is in it. A text of more than a million characters
    is searched in segments.

    Args:
        text: Any text.
        rules: What to look for.

    Returns:
        Spans in order, which do not overlap.
    """
    return finder_of(rules).find(text)


class SpanFinder:
    def __init__(self, rules: CleaningRules) -> None:
        self.specials = SpecialFinder(rules.specials)
        self._reader = _copies.UnitReader(rules.words)
        self._fewest = rules.longest_run + 1

    def find(self, text: str) -> list[Span]:
        specials = list(self.specials.find(text))
        parts, done = [], 0
        for span in specials:  # put as many spaces in their place
            parts += [text[done : span.start], " " * (span.end - span.start)]
            done = span.end
        text = "".join([*parts, text[done:]])
        others: list[Span] = []
        # A long text is cut into about equal parts, at spaces where there are any.
        count = -(-len(text) // _SEGMENT)
        places = [part * len(text) // count for part in range(1, count)]
        cuts = [(text.rfind(" ", place - 1_000, place), place) for place in places]
        bounds = [0, *(place if cut < 0 else cut for cut, place in cuts), len(text)]
        for start, end in pairwise(bounds):
            found = sorted(self._in_segment(text[start:end], start), key=lambda each: each.start)
            if others and found:
                # The end of a segment may cut a span in two.
                last, first = others[-1], found[0]
                same = last.kind is first.kind and sorted(last.what.split()) == sorted(first.what.split())
                if same and not text[last.end : first.start].strip():
                    found[0] = replace(others.pop(), end=first.end, count=last.count + first.count)
            others += found
        # Of spans that overlap, the kind that comes first in `SpanKind` stays.
        precedence = list(SpanKind).index
        kept: list[Span] = []
        for span in sorted([*specials, *others], key=lambda each: (each.start, -each.end)):
            while kept and span.start < kept[-1].end and precedence(span.kind) < precedence(kept[-1].kind):
                kept.pop()
            if not kept or span.start >= kept[-1].end:
                kept.append(span)
        return kept

    def _in_segment(self, text: str, offset: int) -> Iterator[Span]:
        document, words = _copies.Document(text, self._reader), self._reader.flagged
        keys = document.keys
        fewest = min(self._fewest, _copies.FEWEST_COPIES)
        if len(keys) < fewest:
            return
        flagged = _copies.flagged_copies(document, words)
        often = {key: places for key, places in document.positions.items() if len(places) >= fewest}
        if not often and not flagged:
            return
        stretches = _copies.stretches_of(keys, often, self._fewest)
        runs = [stretch for stretch in stretches if self._is_run(document, stretch)]
        planted = _copies.planted_copies(document, words, runs)

        def span(places: range, kind: SpanKind, what: str, count: int, first: int) -> Span:
            units = document.units
            start, end = units.starts[places[0]], units.ends[places[-1]]
            first_end = units.ends[places[first - 1]]
            return Span(offset + start, offset + end, kind, what, count, offset + first_end)

        for run in runs:
            places = range(run.first, run.last)
            repeated = [key for key in keys[run.first : run.last] if key in words]
            if repeated and run.period == 1:
                flagged.update(places)
                continue
            flagged.difference_update(places)
            if repeated:
                yield span(places, SpanKind.FLAGGED, repeated[0], len(repeated), len(places))
            elif not run.period:
                ((word, copies),) = Counter(keys[run.first : run.last]).most_common(1)
                kind = SpanKind.RUN if len(places) >= _copies.MIXED_RUN else SpanKind.INTERLEAVED
                yield span(places, kind, word, copies, 1)
            else:
                what = " ".join(keys[run.first : run.first + run.period])
                yield span(places, SpanKind.RUN, what, len(places) // run.period, run.period)
        for found, kind in ((flagged, SpanKind.FLAGGED), (planted - flagged, SpanKind.INTERLEAVED)):
            for group in _groups(document, sorted(found)):
                yield span(group, kind, keys[group[0]], len(group), 1)

    def _is_run(self, document: _copies.Document, stretch: _copies.Stretch) -> bool:
        keys = document.keys[stretch.first : stretch.last]
        words = set(keys)
        if not words.isdisjoint(self._reader.flagged):
            return True
        around = {*words, *document.keys[max(0, stretch.first - 1) : stretch.last + 1]}
        if len(around) > 1 and all(len(word) <= 2 and word.isascii() for word in around):
            return False
        if len(keys) < self._fewest * stretch.period:
            return False
        # Tables and formulas hold rows of numbers, letters and placeholders.
        others = (word for word in words if keys.count(word) > 1 and word not in _VALUES)
        if all(word[0].isdigit() or (word.isascii() and len(set(word)) == 1) for word in others):
            return False
        return not _is_structured(document, stretch)


def _is_structured(document: _copies.Document, stretch: _copies.Stretch) -> bool:
    joints = document.joints[stretch.first + 1 : stretch.last]
    around = document.joints[stretch.first : stretch.last + 1]
    if sum(not _CODE.isdisjoint(joint) for joint in around) >= 0.25 * len(around):
        return True
    if stretch.period == 1:
        return False
    if set(joints) == {"-"} and len(joints) < 4 * stretch.period:
        return True
    copies = (len(joints) + 1) // stretch.period if stretch.period else len(joints)
    lines = sum("\n" in joint for joint in joints)
    return lines >= copies - 1 or sum(not _NAMES.isdisjoint(joint) for joint in joints) >= 0.5 * len(joints)


def _groups(document: _copies.Document, places: list[int]) -> Iterator[range]:
    joints = document.joints
    start = 0
    for number in range(1, len(places) + 1):
        if number < len(places) and places[number] == places[number - 1] + 1:
            joint = joints[places[number]]
            signs = joint.strip()
            if not (signs and joint[0].isspace() and frozenset(".?!").issuperset(signs)):
                continue
        yield range(places[start], places[number - 1] + 1)
        start = number


finder_of = lru_cache(maxsize=32)(SpanFinder)


_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_DISGUISED = re.compile(f"[{_INVISIBLE}\uff01-\uff5e]")
_INVISIBLE_CHARACTERS = re.compile(f"[{_INVISIBLE}]+")
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


class SpecialFinder:
    def __init__(self, specials: Iterable[str]) -> None:
        texts = {text.strip() for text in specials}
        source = alternation(texts)
        # Tokens that follow each other are one match.
        self._pattern = re.compile(rf"(?P<first>{source})(?:\s*(?:{source}))*") if source else None
        self._single = re.compile(source)
        self._reach = max(map(len, texts), default=1) - 1

    def find(self, text: str) -> Iterator[Span]:
        if self._pattern is None:
            return
        plain, places = _plain(text)
        for match in self._pattern.finditer(plain):
            alone = match.end() == match.end("first")
            copies = 1 if alone else sum(1 for _ in self._single.finditer(plain, *match.span()))
            start, end = places[match.start()], places[match.end() - 1] + 1
            first_end = places[match.end("first") - 1] + 1
            yield Span(start, end, SpanKind.SPECIAL, match["first"], copies, first_end)

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        if self._pattern is not None:
            plain, places = _plain(text)
            for match in self._single.finditer(plain):
                yield places[match.start()], match.group()

    def find_nested(self, text: str) -> list[tuple[int, int, str]]:
        # Each removal joins what stands before and behind it, and only there a new special token can arise;
        # so the time is linear in the length of the text, however deep tokens are nested in each other.
        plain, places = _plain(text)
        if self._pattern is None or not self._pattern.search(plain):
            return []
        kept: list[tuple[int, int]] = []
        names: dict[int, str] = {}
        place = 0
        while match := self._pattern.search(plain, place):
            if match.start() > place:
                kept.append((place, match.start()))
            place, name = match.end(), match["first"]
            while True:
                # The end of what is kept, as long as a token that spans the joint can begin with.
                parts: list[str] = []
                missing = self._reach
                for start, end in reversed(kept):
                    parts.append(plain[max(start, end - missing) : end])
                    missing -= end - start
                    if missing <= 0:
                        break
                before = "".join(reversed(parts))
                joined = self._pattern.search(before + plain[place : place + self._reach])
                if joined is None or joined.start() >= len(before):
                    break
                place += max(0, joined.end() - len(before))
                characters = len(before) - joined.start()
                while characters > 0:  # taken off the end of what is kept
                    start, end = kept.pop()
                    if end - start > characters:
                        kept.append((start, end - characters))
                    characters -= end - start
            names[kept[-1][1] if kept else 0] = name
        if place < len(plain):
            kept.append((place, len(plain)))
        bounds = pairwise([(0, 0), *kept, (len(plain), len(plain))])
        return [
            (
                places[end - 1] + 1 if end else 0,
                places[start] if start < len(plain) else len(text),
                names[end],
            )
            for (_, end), (start, _) in bounds
            if end in names and start > end
        ]


def _plain(text: str) -> tuple[str, Sequence[int]]:
    if text.isascii() or not _DISGUISED.search(text):
        return text, range(len(text))
    ends = chain.from_iterable(match.span() for match in _INVISIBLE_CHARACTERS.finditer(text))
    bounds = [0, *ends, len(text)]
    offsets = (
        range(len(text))
        if len(bounds) == 2
        else array("q", chain.from_iterable(map(range, bounds[::2], bounds[1::2])))
    )
    return _INVISIBLE_CHARACTERS.sub("", text).translate(_NARROW), offsets


Kind = TypeVar("Kind", bound=StrEnum)


class Action(StrEnum):
    """What to do with a finding."""

    REMOVE = "remove"
    """Take it out; of a run, keep the first copy."""
    REPLACE = "replace"
    """Replace it with the replacement; in a run, replace what follows the first copy."""
    ESCAPE = "escape"
    """Put a space after its first character, so that no tokenizer reads it. Special tokens only."""
    REPORT = "report"
    """Leave it and report it."""
    REFUSE = "refuse"
    """Raise an error instead of returning a text."""


# Copies of a word without a flag that are no run are a guess, and no text is taken out on a guess.
DEFAULT_ACTIONS: Mapping[SpanKind, Action] = MappingProxyType(
    {
        SpanKind.FLAGGED: Action.REMOVE,
        SpanKind.SPECIAL: Action.REMOVE,
        SpanKind.RUN: Action.REMOVE,
        SpanKind.INTERLEAVED: Action.REPORT,
    }
)


def actions_of(values: Mapping[Any, str]) -> dict[SpanKind, Action]:
    if not isinstance(values, Mapping):
        raise InputError(f"actions is {shown(values)}: pass a mapping such as {{'special': 'escape'}}")
    actions = dict(DEFAULT_ACTIONS)
    for key, value in values.items():
        kind, action = _member(SpanKind, "kind of finding", key), _member(Action, "action", value)
        if action is Action.ESCAPE and kind is not SpanKind.SPECIAL:
            raise InputError(f"the action for {kind.value} is escape: only special tokens can be escaped")
        actions[kind] = action
    return actions


def _member(kinds: type[Kind], what: str, value: Any) -> Kind:
    try:
        return kinds(value)
    except ValueError:
        names = ", ".join(kind.value for kind in kinds)
        raise InputError(f"{shown(value)} is no {what}: use one of {names}") from None
