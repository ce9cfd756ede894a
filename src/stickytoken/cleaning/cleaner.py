"""Remove from documents what does not belong there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.cleaning._cleaner_file import FORMAT, cleaner_parts, read_cleaner_file, write_cleaner_file
from stickytoken.cleaning._edits import Edit, EditedText, tidied
from stickytoken.cleaning.actions import DEFAULT_ACTIONS, Action, actions_of
from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import Span, SpanFinder, SpanKind, finder_of
from stickytoken.errors import InputError, RefusedTextError
from stickytoken.validation import shown

if TYPE_CHECKING:
    from stickytoken.detection import Run

_ELLIPSIS = "…"
_ORDINARY_ROUNDS = 4
_GROWTH = 16
_MANY = 64
_SHOWN = 60


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
        if writes and finder_of(rules).find(" ".join([replacement] * _MANY)):
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
        from stickytoken.cleaning.run_rules import rules_of_run, source_of_run
        from stickytoken.detection.run import open_run

        opened = open_run(run)
        return cls(rules_of_run(opened), source=source_of_run(opened), **options)

    @classmethod
    def from_file(cls, path: str | Path) -> Cleaner:
        """Read a cleaner that `save` wrote. This loads in milliseconds and needs no model and no run.

        Raises:
            InputError: The file cannot be read, or is not a cleaner.
        """
        return cls._of_parts(read_cleaner_file(path))

    @classmethod
    def from_json(cls, value: object) -> Cleaner:
        """Make a cleaner from what `to_json` returned.

        Raises:
            InputError: It is something else.
        """
        return cls._of_parts(cleaner_parts(value, shown(value)))

    @classmethod
    def _of_parts(cls, parts: Mapping[str, Any]) -> Cleaner:
        return cls(
            CleaningRules.from_json(parts["rules"]),
            parts["actions"],
            replacement=parts["replacement"],
            source=parts["source"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the cleaner as JSON values, which make the same cleaner with `from_json`."""
        return {
            "format": FORMAT,
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
        write_cleaner_file(path, self.to_json())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the prepared rules, which another process prepares again.

        They remember words, so that equal cleaners would have different hashes in a cache.
        """
        return {name: value for name, value in self.__dict__.items() if name != "_finder"}

    def __call__(self, text: str) -> str:
        """Return the cleaned text; see `clean`."""
        return self.clean(text).text

    def clean(self, text: str) -> Cleaned:
        """Clean a text until nothing is left to clean.

        Raises:
            InputError: The text is not a string.
            RefusedTextError: An action is ``refuse``, and the text holds what it is for.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {shown(text)}: pass a string")
        edited = EditedText(text)
        removals: list[Removal] = []
        rounds = margin = 0
        while True:
            spans = self._finder.find(edited.text)
            if not rounds and Action.REFUSE in self.actions.values():
                self._refuse(text, spans)
            edits = self._plan(edited, spans, removals, margin)
            if not edits:
                return Cleaned(edited.text, tuple(_outermost(removals)), tuple(spans))
            edited.apply(edits)
            rounds += 1
            # A removal can make a new finding of what it joins. Ordinary texts are clean after a round or
            # two; for one that was nested on purpose, growing margins keep the number of rounds small.
            if rounds >= _ORDINARY_ROUNDS:
                margin = max(1, margin) * _GROWTH

    @cached_property
    def _finder(self) -> SpanFinder:
        return finder_of(self.rules)

    def _refuse(self, text: str, spans: Iterable[Span]) -> None:
        found = [(span.start, span.kind, span.what) for span in spans]
        found += [(start, SpanKind.SPECIAL, what) for start, what in self._finder.specials.starts(text)]
        for start, kind, what in sorted(found):
            if self.actions[kind] is Action.REFUSE:
                raise RefusedTextError(
                    f"the text contains {kind.phrase} ({what[:_SHOWN]!r}) at character {start:,}: refused"
                )

    def _plan(
        self, edited: EditedText, spans: Iterable[Span], removals: list[Removal], margin: int
    ) -> list[Edit]:
        """Plan the edits of one round, and note what they remove."""
        text = edited.text
        wanted = list(self._edits_of_specials(text)) or list(self._edits_of_spans(text, spans))
        edits: list[Edit] = []
        done = 0
        for (start, end, replacement), kind, what in sorted(wanted):
            first, last = start, end
            if margin and kind is not SpanKind.SPECIAL:
                first, last = max(done, start - margin), min(len(text), end + margin)
            if start >= done:
                edits.append(Edit(first, last, replacement))
                removals.append(Removal(*edited.original(first, last), kind, what))
                done = last
        return edits

    def _edits_of_specials(self, text: str) -> Iterator[tuple[Edit, SpanKind, str]]:
        """Yield the edits of special tokens, which come first since other findings may hide them."""
        finder, action = self._finder.specials, self.actions[SpanKind.SPECIAL]
        if action in (Action.REMOVE, Action.REPLACE):
            for start, end, what in finder.find_nested(text):
                yield tidied(text, Edit(start, end, self._put(action))), SpanKind.SPECIAL, what
        elif action is Action.ESCAPE:
            for start, what in finder.starts(text):
                yield Edit(start + 1, start + 1, " "), SpanKind.SPECIAL, what

    def _edits_of_spans(self, text: str, spans: Iterable[Span]) -> Iterator[tuple[Edit, SpanKind, str]]:
        for span in spans:
            action = self.actions[span.kind]
            if span.kind is not SpanKind.SPECIAL and action in (Action.REMOVE, Action.REPLACE):
                start = span.first_end if span.kind is SpanKind.RUN else span.start
                yield tidied(text, Edit(start, span.end, self._put(action))), span.kind, span.what

    def _put(self, action: Action) -> str:
        return self.replacement if action is Action.REPLACE else ""


def _outermost(removals: list[Removal]) -> Iterator[Removal]:
    """Yield removals in order, without those inside others, which came first."""
    end = -1
    for removal in sorted(removals, key=lambda each: (each.start, -each.end)):
        if removal.end > end or (removal.start == removal.end and removal.start >= end):
            yield removal
            end = max(end, removal.end)
