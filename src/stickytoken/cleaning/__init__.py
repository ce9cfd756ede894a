"""Find and remove copies of sticky tokens, text of special tokens and runs in documents.

Light on purpose: a cleaner loads without torch, NumPy or Polars, so that an ingestion service can use it.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import (
    DEFAULT_ACTIONS,
    Action,
    Span,
    SpanKind,
    actions_of,
    find_spans,
    finder_of,
)
from stickytoken.errors import InputError, RefusedTextError, reading
from stickytoken.validation import file_path, shown

if TYPE_CHECKING:
    from stickytoken.cleaning.spans import SpanFinder
    from stickytoken.detection import Run

__all__ = ["Action", "Cleaned", "Cleaner", "CleaningRules", "Removal", "Span", "SpanKind", "find_spans"]


_FORMAT = "stickytoken cleaner"
_PARTS: Mapping[str, type] = {"rules": dict, "actions": dict, "replacement": str, "source": dict}


class Edit(NamedTuple):
    start: int
    end: int  # behind the last character that is replaced
    text: str  # what takes their place


_SIGNS = ",;:.!?…/|_~·-–—"
_JOINING = re.compile(f"[{re.escape(_SIGNS)}]+")
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u2060\ufeff"


def tidied(text: str, edit: Edit) -> Edit:
    start, end, replacement = edit
    joints = set("".join(_JOINING.findall(text[start:end])))
    if len(joints) > 1:
        joints.update(_SIGNS)
    while end < len(text) and (text[end] in joints or text[end] in _INVISIBLE):
        end += 1
    if joints:  # the one behind it may be separated from the last copy by a space
        last = end
        while last < len(text) and (text[last] in joints or text[last] == " "):
            last += 1
        if last == len(text) or text[last].isspace() or text[last - 1].isspace():
            end += len(text[end:last].rstrip())
    while start > 0 and text[start - 1] in _INVISIBLE:
        start -= 1
    if replacement:
        return Edit(start, end, replacement)
    open_before = start == 0 or text[start - 1].isspace()
    open_behind = end == len(text) or text[end].isspace()
    if open_before and open_behind:
        if end < len(text):
            end += 1
        elif start > 0:
            start -= 1
    return Edit(start, end, replacement)


_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Removal:
    """A part of a text that was removed, replaced or escaped.

    Attributes:
        start: Offset of its first character in the text as it was.
        end: Offset behind its last character.
        kind: Why.
        what: The word, phrase or special token.
    """

    start: int
    end: int
    kind: SpanKind
    what: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A cleaned text.

    Attributes:
        text: The text as it is now.
        removals: What was taken out, replaced or escaped, in order, by offsets of the text as it was. Of a
            run, what follows its first copy.
        reported: What was found and left, by offsets of the cleaned text.
    """

    text: str
    removals: tuple[Removal, ...]
    reported: tuple[Span, ...]


class Cleaner:
    """Removes copies of sticky tokens, text of special tokens and runs from texts, and changes nothing else.

    Cleaning a cleaned text changes nothing. One cleaner may be used from several threads.

    Args:
        rules: What to look for.
        actions: What to do with each kind of finding, by kind; the defaults for kinds that are left out.
        replacement: What the action ``replace`` writes.
        source: Where the rules are from, for whoever reads the file.

    Raises:
        InputError: an action does not fit, or the replacement holds letters or digits.
    """

    def __init__(
        self,
        rules: CleaningRules,
        actions: Mapping[Any, str] = DEFAULT_ACTIONS,
        *,
        replacement: str = _ELLIPSIS,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(rules, CleaningRules):
            raise InputError(f"rules is {shown(rules)}: pass CleaningRules, or use Cleaner.from_run")
        given: object = replacement
        if not isinstance(given, str) or any(each.isalnum() for each in given):
            raise InputError(f"replacement is {shown(replacement)}: pass text without letters or digits")
        self.actions = actions_of(actions)
        writes = replacement != _ELLIPSIS or Action.REPLACE in self.actions.values()
        if writes and finder_of(rules).find(" ".join([replacement] * 64)):
            raise InputError(
                f"replacement is {shown(replacement)}, which the rules are about: use another text"
            )
        self.rules = rules
        self.replacement = replacement
        self.source = dict(source or {})

    def __repr__(self) -> str:
        return f"<Cleaner: {len(self.rules.words):,} words, {len(self.rules.specials):,} special tokens>"

    @classmethod
    def from_run(cls, run: Run | str | Path, **options: Any) -> Cleaner:
        """Make a cleaner for the tokens that a run flags and the special tokens of its model.

        Args:
            run: A finished run, or its folder.
            options: Passed on to `Cleaner`.

        Raises:
            RunError: The folder is not a run, is damaged or is not finished.
        """
        from stickytoken.cleaning.rules import rules_of_run
        from stickytoken.detection.run import open_run

        opened = open_run(run)
        record = opened.record
        source = {"model": record.model.name, "method": record.method, "identity": record.identity}
        return cls(rules_of_run(opened), source=source, **options)

    @classmethod
    def from_file(cls, path: str | Path) -> Cleaner:
        """Read a cleaner that `save` wrote. This loads in milliseconds and needs no model and no run.

        Raises:
            InputError: The file cannot be read, or is not a cleaner.
        """
        place = file_path("the file of the cleaner", path)
        try:
            with reading(place):
                document = json.loads(place.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not a cleaner: it is not JSON ({error})") from error
        return cls._of_document(document, str(place))

    @classmethod
    def from_json(cls, value: object) -> Cleaner:
        """Make a cleaner from what `to_json` returned.

        Raises:
            InputError: It is something else.
        """
        return cls._of_document(value, shown(value))

    @classmethod
    def _of_document(cls, document: object, name: str) -> Cleaner:
        if not isinstance(document, Mapping) or document.get("format") != _FORMAT:
            raise InputError(f"{name} is not a cleaner: write one with Cleaner.save or clean --rules-out")
        for part, kind in _PARTS.items():
            if not isinstance(document.get(part), kind):
                raise InputError(f"{name} is damaged: its entry {part!r} is missing or of the wrong type")
        rules, actions, replacement, source = (document[part] for part in _PARTS)
        return cls(CleaningRules.from_json(rules), actions, replacement=replacement, source=source)

    def to_json(self) -> dict[str, Any]:
        """Return the cleaner as JSON values, which make the same cleaner with `from_json`."""
        return {
            "format": _FORMAT,
            "rules": self.rules.to_json(),
            "actions": {kind.value: action.value for kind, action in self.actions.items()},
            "replacement": self.replacement,
            "source": dict(self.source),
        }

    def save(self, path: str | Path) -> None:
        """Write the cleaner as a small JSON file.

        Raises:
            RunError: The file cannot be written.
        """
        from stickytoken.measurement import write_atomically

        document = json.dumps(self.to_json(), indent=2) + "\n"
        write_atomically(file_path("the file of the cleaner", path), document.encode("ascii"))

    def __getstate__(self) -> dict[str, Any]:
        # The prepared rules remember words, so that equal cleaners would have different hashes in a cache.
        return {name: value for name, value in self.__dict__.items() if name != "_finder"}

    def __call__(self, text: str) -> str:
        return self.clean(text).text

    def clean(self, text: str) -> Cleaned:
        """Clean a text until nothing is left to clean.

        Raises:
            InputError: The text is not a string.
            RefusedTextError: An action is ``refuse``, and the text holds what it is for.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {shown(text)}: pass a string")
        spans = self._finder.find(text)
        if Action.REFUSE in self.actions.values():
            found = [(span.start, span.kind, span.what) for span in spans]
            found += [(start, SpanKind.SPECIAL, what) for start, what in self._finder.specials.starts(text)]
            for start, kind, what in sorted(found):
                if self.actions[kind] is Action.REFUSE:
                    raise RefusedTextError(
                        f"the text contains {kind.phrase} ({what[:60]!r}) at character {start:,}: refused"
                    )
        # Where each character was at first, with the end; what replaces others is where they began.
        origins: Sequence[int] = range(len(text) + 1)
        removals: list[Removal] = []
        rounds = margin = 0
        while edits := self._plan(text, origins, spans, removals, margin):
            parts: list[str] = []
            moved = array("q")  # a list of so many numbers would take five times the memory
            done = 0
            for start, end, replacement in edits:
                parts += [text[done:start], replacement]
                moved.extend(origins[done:start])
                moved.extend([origins[start]] * len(replacement))
                done = end
            moved.extend(origins[done:])
            text, origins = "".join([*parts, text[done:]]), moved
            spans = self._finder.find(text)
            rounds += 1
            # A removal can make a new finding of what it joins. Ordinary texts are clean after a round or
            # two; for one that was nested on purpose, growing margins keep the number of rounds small.
            if rounds >= 4:
                margin = max(1, margin) * 16
        outermost: list[Removal] = []
        end = -1
        for removal in sorted(removals, key=lambda each: (each.start, -each.end)):
            if removal.end > end or (removal.start == removal.end and removal.start >= end):
                outermost.append(removal)
                end = max(end, removal.end)
        return Cleaned(text, tuple(outermost), tuple(spans))

    @cached_property
    def _finder(self) -> SpanFinder:
        return finder_of(self.rules)

    def _plan(
        self, text: str, origins: Sequence[int], spans: Iterable[Span], removals: list[Removal], margin: int
    ) -> list[Edit]:
        specials = self._finder.specials
        writes = {Action.REMOVE: "", Action.REPLACE: self.replacement}
        action = self.actions[SpanKind.SPECIAL]
        wanted: list[tuple[Edit, SpanKind, str]] = []
        if action in writes:
            for start, end, what in specials.find_nested(text):
                wanted.append((tidied(text, Edit(start, end, writes[action])), SpanKind.SPECIAL, what))
        elif action is Action.ESCAPE:
            for start, what in specials.starts(text):
                wanted.append((Edit(start + 1, start + 1, " "), SpanKind.SPECIAL, what))
        for span in () if wanted else spans:
            action = self.actions[span.kind]
            if span.kind is not SpanKind.SPECIAL and action in writes:
                start = span.first_end if span.kind is SpanKind.RUN else span.start
                edit = tidied(text, Edit(start, span.end, writes[action]))
                wanted.append((edit, span.kind, span.what))
        edits: list[Edit] = []
        done = 0
        for (start, end, replacement), kind, what in sorted(wanted):
            first, last = start, end
            if margin and kind is not SpanKind.SPECIAL:
                first, last = max(done, start - margin), min(len(text), end + margin)
            if start >= done:
                edits.append(Edit(first, last, replacement))
                behind = origins[last - 1] + 1 if last > first else origins[first]
                removals.append(Removal(origins[first], behind, kind, what))
                done = last
        return edits


CleanerSource: TypeAlias = "Cleaner | Run | str | Path | Mapping[str, Any]"
"""A cleaner; a run or its folder; a file that `Cleaner.save` wrote; or what `Cleaner.to_json` returned."""


def open_cleaner(source: CleanerSource) -> Cleaner:
    if isinstance(source, Cleaner):
        return source
    if isinstance(source, Mapping):
        return Cleaner.from_json(source)
    if isinstance(source, (str, os.PathLike)) and file_path("the cleaner", source).is_file():
        return Cleaner.from_file(source)
    return Cleaner.from_run(source)


def counts_in_words(removed: Mapping[SpanKind, int], left: Mapping[SpanKind, int]) -> str:
    parts = [f"{count:,} {kind.value}" for kind, count in sorted(removed.items())]
    parts += [f"{count:,} {kind.value} left" for kind, count in sorted(left.items())]
    return ", ".join(parts)


NOTE = "stickytoken"  # the key under which a document says what was found in it


def cleaned_text(cleaner: Cleaner, text: str, name: str) -> tuple[str, str]:
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    try:
        cleaned = cleaner.clean(text)
    except RefusedTextError as error:
        raise RefusedTextError(f"{name}: {error}") from error
    removed = Counter(removal.kind for removal in cleaned.removals)
    return cleaned.text, counts_in_words(removed, Counter(span.kind for span in cleaned.reported))


_REPLACED = "surrogateescape"


class CleanedLine(NamedTuple):
    number: int  # from 1
    before: str  # as it was, without its end
    cleaned: Cleaned
    content: bytes  # the cleaned line with its end


@dataclass(slots=True)
class LineTotals:
    lines: int = 0
    changed: int = 0
    removed: Counter[SpanKind] = field(default_factory=Counter)  # or replaced or escaped
    reported: Counter[SpanKind] = field(default_factory=Counter)
    undecoded: int = 0  # lines that are not UTF-8; such bytes are passed on as they are
    first_undecoded: tuple[int, int] | None = None  # line and byte of the first of those, both from 1


def clean_lines(lines: Iterable[bytes], cleaner: Cleaner, totals: LineTotals) -> Iterator[CleanedLine]:
    for number, line in enumerate(lines, 1):
        content = line.rstrip(b"\r\n")
        ending = line[len(content) :]
        try:
            before = content.decode("utf-8")
        except UnicodeDecodeError as error:
            totals.undecoded += 1
            totals.first_undecoded = totals.first_undecoded or (number, error.start + 1)
            before = content.decode("utf-8", _REPLACED)
        try:
            cleaned = cleaner.clean(before)
        except RefusedTextError as error:
            raise RefusedTextError(f"line {number:,}: {error}") from error
        totals.lines += 1
        totals.changed += cleaned.text != before
        totals.removed.update(removal.kind for removal in cleaned.removals)
        totals.reported.update(span.kind for span in cleaned.reported)
        yield CleanedLine(number, before, cleaned, cleaned.text.encode("utf-8", _REPLACED) + ending)
