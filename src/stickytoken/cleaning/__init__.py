"""Find and remove copies of sticky tokens, special tokens written as text, and repetitions in documents.

A cleaner loads without torch, NumPy or Polars, so that an ingestion service can use it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

from stickytoken.cleaning._edits import Draft, Edit, edits_of_parts, tidied
from stickytoken.cleaning._units import word_key as word_key  # audits compare words as a scan does
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
from stickytoken.validation import file_path, require_switch, shown

if TYPE_CHECKING:
    from stickytoken.cleaning.spans import SpanFinder
    from stickytoken.detection import Run

__all__ = [
    "Action",
    "Cleaned",
    "Cleaner",
    "CleaningRules",
    "Edit",
    "Removal",
    "Span",
    "SpanKind",
    "find_spans",
]


_FORMAT = "stickytoken cleaner"
_WRITE_RULES = "write one with `stickytoken clean RUN --rules-out FILE` or `Cleaner.save`"
_PARTS: Mapping[str, type] = {
    "rules": dict,
    "actions": dict,
    "replacement": str,
    "source": dict,
    "remove_all": bool,
}


_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Removal:
    """A part of a text that was removed, replaced or escaped.

    Attributes:
        start: Offset of the part's first character in the original text.
        end: Offset after the part's last character in the original text.
        kind: Kind of the finding.
        what: The word, phrase or special token that was found.
    """

    start: int
    end: int
    kind: SpanKind
    what: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A cleaned text.

    Attributes:
        text: The cleaned text.
        removals: The parts that were removed, replaced or escaped, in order, with offsets in the original
            text. The first copy of a repetition is not removed.
        reported: The findings that were left in the text, with offsets in the cleaned text.
        edits: The edits that turn the original text into the cleaned one.
        causes: The kinds of findings in the original text that led to changes.
    """

    text: str
    removals: tuple[Removal, ...]
    reported: tuple[Span, ...]
    edits: tuple[Edit, ...] = ()
    causes: frozenset[SpanKind] = frozenset()


class Cleaner:
    """Removes copies of sticky tokens, special tokens written as text, and repetitions, and nothing else.

    The first copy of a repeated unflagged word stays, because it may belong there. Cleaning a cleaned text
    changes nothing. A cleaner is thread-safe.

    Args:
        rules: What to look for.
        actions: What to do with findings, keyed by kind. A kind that is left out gets its default action.
        replacement: The text that the action ``replace`` writes.
        source: Where the rules come from; used only as a record in the saved file.
        remove_all: Remove every occurrence of a flagged word, including single ones.

    Raises:
        InputError: An action cannot be applied to a kind, or the replacement contains letters, digits or
            something that the rules would remove.
    """

    def __init__(
        self,
        rules: CleaningRules,
        actions: Mapping[Any, str] = DEFAULT_ACTIONS,
        *,
        replacement: str = _ELLIPSIS,
        source: Mapping[str, Any] | None = None,
        remove_all: bool = False,
    ) -> None:
        if not isinstance(rules, CleaningRules):
            raise InputError(f"rules is {shown(rules)}: pass CleaningRules, or use Cleaner.from_run")
        replacement_text: object = replacement
        if not isinstance(replacement_text, str) or any(
            character.isalnum() for character in replacement_text
        ):
            raise InputError(f"replacement is {shown(replacement)}: pass text without letters or digits")
        self.actions = actions_of(actions)
        writes = replacement != _ELLIPSIS or Action.REPLACE in self.actions.values()
        if writes and finder_of(rules).find(" ".join([replacement] * 64)):
            raise InputError(
                f"replacement is {shown(replacement)}, but the rules find something to remove in it: use "
                "a different text"
            )
        require_switch("remove_all", remove_all)
        if remove_all and self.actions[SpanKind.FLAGGED] not in (Action.REMOVE, Action.REPLACE):
            raise InputError(
                f"remove_all is set, but the action for flagged is {self.actions[SpanKind.FLAGGED].value}: "
                "use remove or replace, or leave remove_all out"
            )
        self.remove_all = remove_all
        self.rules = rules
        self.replacement = replacement
        self.source = dict(source or {})

    def __repr__(self) -> str:
        return f"<Cleaner: {len(self.rules.words):,} words, {len(self.rules.specials):,} special tokens>"

    @classmethod
    def from_run(cls, run: Run | str | Path, **options: Any) -> Cleaner:
        """Return a cleaner for the tokens that a run flags and the special tokens of its model.

        Args:
            run: A finished run, or its folder.
            options: Further keyword arguments, passed to `Cleaner`.

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
        """Read a rules file that `save` wrote. The call takes milliseconds, and needs no model and no run.

        Raises:
            InputError: The file cannot be read, or is not a rules file.
        """
        rules_path = file_path("the rules file", path)
        try:
            with reading(rules_path):
                document = json.loads(rules_path.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{rules_path} is not a rules file, because it is not valid JSON ({error}): {_WRITE_RULES}"
            ) from error
        return cls._of_document(document, str(rules_path))

    @classmethod
    def from_json(cls, value: object) -> Cleaner:
        """Make a cleaner from what `to_json` returned.

        Raises:
            InputError: The value is not a cleaner.
        """
        return cls._of_document(value, shown(value))

    @classmethod
    def _of_document(cls, document: object, name: str) -> Cleaner:
        """Return the cleaner that a JSON document describes; errors refer to the document as ``name``."""
        if not isinstance(document, Mapping) or document.get("format") != _FORMAT:
            raise InputError(f"{name} is not a rules file: {_WRITE_RULES}")
        for field_name, kind in _PARTS.items():
            if not isinstance(document.get(field_name), kind):
                raise InputError(
                    f"{name} is damaged: its entry {field_name!r} is missing or of the wrong type"
                )
        try:
            rules = CleaningRules.from_json(document["rules"])
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        return cls(
            rules,
            document["actions"],
            replacement=document["replacement"],
            source=document["source"],
            remove_all=document["remove_all"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the cleaner as JSON values, from which `from_json` makes an equal cleaner."""
        return {
            "format": _FORMAT,
            "rules": self.rules.to_json(),
            "actions": {kind.value: action.value for kind, action in self.actions.items()},
            "replacement": self.replacement,
            "source": dict(self.source),
            "remove_all": self.remove_all,
        }

    def save(self, path: str | Path) -> None:
        """Write the cleaner as a small JSON file.

        Raises:
            RunError: The file cannot be written.
        """
        from stickytoken.measurement import write_atomically

        document = json.dumps(self.to_json(), indent=2) + "\n"
        write_atomically(file_path("the rules file", path), document.encode("ascii"))

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the finder: its cache of words would give equal cleaners different pickles, and so
        # different hashes.
        return {name: value for name, value in self.__dict__.items() if name != "_finder"}

    def __call__(self, text: str) -> str:
        return self.clean(text).text

    def clean(self, text: str) -> Cleaned:
        """Clean a text, repeatedly, until the rules find nothing left to change.

        Returns:
            The cleaned text, with a record of what was changed and what was left.

        Raises:
            InputError: The text is not a string.
            RefusedTextError: The text has a finding whose action is ``refuse``.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {shown(text)}: pass a string")
        spans = self._find(text)
        self._refuse(text, spans)
        causes = frozenset(span.kind for span in spans if self.actions[span.kind] is not Action.REPORT)
        draft = Draft(text)
        removals: list[Removal] = []
        rounds = 0
        margin = 0
        while planned := self._plan(draft.text, spans, margin):
            removals += [_removal(draft, change) for change in planned]
            draft.apply([change.edit for change in planned])
            spans = self._find(draft.text)
            rounds += 1
            # A removal joins the text before and after the removed part, which can create a new finding.
            # Ordinary texts are clean after one or two rounds. Someone who wants to evade cleaning can nest
            # findings. After several rounds, each removal therefore also covers a margin of text around the
            # finding, and the margin grows, which keeps the number of rounds small.
            if rounds >= _ORDINARY_ROUNDS:
                margin = max(1, margin) * _MARGIN_GROWTH
        return Cleaned(draft.text, _outermost(removals), tuple(spans), draft.edits(), causes)

    def clean_parts(self, texts: Sequence[str]) -> tuple[Cleaned, list[tuple[Edit, ...]]]:
        """Clean texts that form one document when joined by spaces, such as a title and a body.

        Returns:
            The cleaned document, with offsets in the joined original texts, and the edits of each text, with
            offsets in this text.

        Raises:
            InputError: A text is not a string.
            RefusedTextError: The document has a finding whose action is ``refuse``.
        """
        whole = self.clean(" ".join(texts))
        if len(texts) == 1:
            return whole, [whole.edits]
        drafts = [Draft(text) for text in texts]
        starts = [0]  # offset in the original document at which each text starts
        for text in texts[:-1]:
            starts.append(starts[-1] + len(text) + 1)

        removals = list(whole.removals)
        cleaned = whole
        # `clean` may remove a space that joins two texts, but the texts must stay separate, so they are
        # joined by a space again. The joined texts can then contain new findings, so cleaning is repeated
        # until nothing changes. Each round applies the latest edits to the drafts, and cleans the joined
        # drafts again.
        while cleaned.edits:
            lengths = [len(draft.text) for draft in drafts]
            for draft, edits in zip(drafts, edits_of_parts(cleaned.edits, lengths), strict=True):
                draft.apply(edits)
            cleaned = self.clean(" ".join(draft.text for draft in drafts))
            # The new removals have offsets in the joined drafts. Convert them to offsets in the original
            # document now, because the next round changes the drafts.
            for removal in cleaned.removals:
                start = end = _original_offset(drafts, starts, removal.start)
                if removal.end > removal.start:
                    end = _original_offset(drafts, starts, removal.end - 1) + 1
                removals.append(Removal(start, end, removal.kind, removal.what))
        # The edits that turn each original text into the text of its draft, over all rounds.
        edits_by_part = [draft.edits() for draft in drafts]
        document_edits = []
        for start, part_edits in zip(starts, edits_by_part, strict=True):
            document_edits += [Edit(start + edit.start, start + edit.end, edit.text) for edit in part_edits]
        document = replace(
            whole,
            text=cleaned.text,
            removals=_outermost(removals),  # a removal of a later round can contain earlier ones
            reported=cleaned.reported,
            edits=tuple(document_edits),
        )
        return document, edits_by_part

    @cached_property
    def _finder(self) -> SpanFinder:
        return finder_of(self.rules)

    def _find(self, text: str) -> list[Span]:
        """Return the findings in a text."""
        return self._finder.find(text, every_flagged=self.remove_all)

    def _refuse(self, text: str, spans: Sequence[Span]) -> None:
        """Raise RefusedTextError if a finding has the action ``refuse``."""
        if Action.REFUSE not in self.actions.values():
            return
        findings = [(span.start, span.kind, span.what) for span in spans]
        findings += [
            (start, SpanKind.SPECIAL, token_text) for start, token_text in self._finder.specials.starts(text)
        ]
        for start, kind, token_text in sorted(findings):
            if self.actions[kind] is Action.REFUSE:
                raise RefusedTextError(
                    f"the text contains {kind.phrase} ({token_text[:60]!r}) at character {start:,}, and "
                    f"the action for {kind.value} is refuse: edit the text, or choose another action"
                )

    def _plan(self, text: str, spans: Iterable[Span], margin: int) -> list[_Change]:
        """Return the changes of one round, in order: those of special tokens or, if there are none, of words.

        The changes of a round must not overlap. A change that begins within the one before it is left out.
        Nothing is lost, because `clean` searches the changed text again and plans another round if a finding
        is left.

        Args:
            text: The text at the start of the round.
            spans: The findings in the text.
            margin: Number of extra characters to remove on each side of every change, except of a special
                token. It is 0 in the first rounds. Later, it removes whole nests of findings at once, which
                would otherwise take a round for each level; see `clean`.
        """
        changes = self._changes_of_specials(text) or self._changes_of_words(text, spans)
        planned: list[_Change] = []
        done = 0  # where the latest planned change ends
        for change in sorted(changes):
            start, end, replacement = change.edit
            overlaps_previous = start < done
            if overlaps_previous:
                continue
            if margin and change.kind is not SpanKind.SPECIAL:
                start = max(done, start - margin)
                end = min(len(text), end + margin)
            planned.append(_Change(Edit(start, end, replacement), change.kind, change.what))
            done = end
        return planned

    def _changes_of_specials(self, text: str) -> list[_Change]:
        """Return the changes of special tokens; empty if special tokens are only reported."""
        specials = self._finder.specials
        action = self.actions[SpanKind.SPECIAL]
        changes = []
        if action is Action.ESCAPE:
            for start, token_text in specials.starts(text):
                changes.append(_Change(Edit(start + 1, start + 1, " "), SpanKind.SPECIAL, token_text))
        elif action in (Action.REMOVE, Action.REPLACE):
            for start, end, token_text in specials.find_nested(text):
                edit = tidied(text, Edit(start, end, self._written_by(action)))
                changes.append(_Change(edit, SpanKind.SPECIAL, token_text))
        return changes

    def _changes_of_words(self, text: str, spans: Iterable[Span]) -> list[_Change]:
        """Return the changes that remove or replace flagged words, repetitions and suspected copies."""
        changes = []
        for span in spans:
            action = self.actions[span.kind]
            if span.kind is SpanKind.SPECIAL or action not in (Action.REMOVE, Action.REPLACE):
                continue
            start = span.first_end if span.kind is SpanKind.REPETITION else span.start
            edit = tidied(text, Edit(start, span.end, self._written_by(action)))
            changes.append(_Change(edit, span.kind, span.what))
        return changes

    def _written_by(self, action: Action) -> str:
        """Return the text that an action writes in place of a finding."""
        return self.replacement if action is Action.REPLACE else ""


# Maximum number of rounds that ordinary text needs. If more are needed, findings were nested on purpose.
_ORDINARY_ROUNDS = 4
# Factor by which the margins of removals grow in each further round.
_MARGIN_GROWTH = 16


class _Change(NamedTuple):
    """A planned edit, with the kind and the word or special token of the finding to which it is applied."""

    edit: Edit
    kind: SpanKind
    what: str


def _removal(draft: Draft, change: _Change) -> Removal:
    """Convert a change, with offsets in the draft, to a removal with offsets in the original text."""
    start, end, _ = change.edit
    first = draft.origins[start]
    after_last = draft.origins[end - 1] + 1 if end > start else first
    return Removal(first, after_last, change.kind, change.what)


def _original_offset(drafts: Sequence[Draft], starts: Sequence[int], position: int) -> int:
    """Map the offset of a character in joined drafts to its offset in the joined original texts.

    Args:
        drafts: The drafts, which are joined by single spaces.
        starts: For each draft, the offset in the joined original texts at which its text starts.
        position: The offset of the character in the joined drafts.
    """
    for draft, start in zip(drafts, starts, strict=True):
        if position <= len(draft.text):
            return start + draft.origins[position]
        position -= len(draft.text) + 1  # the space that joins this draft to the next one
    raise IndexError(position)


def _outermost(removals: Iterable[Removal]) -> tuple[Removal, ...]:
    """Return the removals that no other removal contains, in order."""
    outermost: list[Removal] = []
    end = -1
    for removal in sorted(removals, key=lambda removal: (removal.start, -removal.end)):
        is_insertion = removal.start == removal.end and removal.start >= end
        if removal.end > end or is_insertion:
            outermost.append(removal)
            end = max(end, removal.end)
    return tuple(outermost)


CleanerSource: TypeAlias = "Cleaner | Run | str | Path | Mapping[str, Any]"
"""A cleaner; a run or its folder; a file that `Cleaner.save` wrote; or what `Cleaner.to_json` returned."""


def names_rules_file(source: object) -> TypeGuard[str | Path]:
    """Return whether a value is taken as the path of a rules file, and not as a run folder.

    The path of an existing file is taken as a rules file, and so is a path that ends in .json if nothing
    exists there.
    """
    if not isinstance(source, (str, os.PathLike)):
        return False
    try:
        path = file_path("the rules file", source)
        is_missing_json = path.suffix.lower() == ".json" and not path.exists()
        return path.is_file() or is_missing_json
    except (InputError, OSError):
        # The path cannot be used, for example because a name is too long. The code that opens the path as a
        # run folder reports the reason.
        return False


def open_cleaner(source: CleanerSource) -> Cleaner:
    """Return ``source`` if it is a cleaner; otherwise, make a cleaner from it. See `CleanerSource`."""
    if isinstance(source, Cleaner):
        return source
    if isinstance(source, Mapping):
        return Cleaner.from_json(source)
    if names_rules_file(source):
        return Cleaner.from_file(source)
    return Cleaner.from_run(source)


def document_counts(
    count: int, documents: int, by_cause: Mapping[SpanKind, int] | Mapping[str, int]
) -> tuple[str, str]:
    """Return a phrase for a number of documents, and a list of the causes with the number for each cause.

    Example: "3 of 1,400 documents" and " (flagged token: 2, repetition: 1)"; the list is empty if no document
    has a cause. Scans, cleaning and checks all use this wording. A document with two causes is counted under
    both causes.
    """
    noun = "document" if documents == 1 else "documents"
    counted = f"{count:,} of {documents:,} {noun}" if count else f"none of {documents:,} {noun}"
    counts: dict[str, int] = dict(by_cause.items())
    causes = [f"{kind.cause}: {counts[kind]:,}" for kind in SpanKind if counts.get(kind)]
    return counted, f" ({', '.join(causes)})" if causes else ""


def counts_in_words(removed: Mapping[SpanKind, int], remaining: Mapping[SpanKind, int]) -> str:
    """Return a phrase that says how many findings of each kind were removed, and how many are left."""
    phrases = [f"{count:,} {kind.value}" for kind, count in sorted(removed.items())]
    phrases += [f"{count:,} {kind.value} left" for kind, count in sorted(remaining.items())]
    return ", ".join(phrases)


NOTE = "stickytoken"  # metadata key under which a document gets a note on what was found


def cleaned_text(cleaner: Cleaner, text: str, name: str) -> tuple[str, str]:
    """Clean a text, and describe what was found.

    Args:
        cleaner: The cleaner.
        text: The text.
        name: How errors refer to the text.

    Returns:
        The cleaned text, and a phrase with the numbers of findings, which is empty if nothing was found.

    Raises:
        InputError: The text is not a string.
        RefusedTextError: The text has a finding whose action is ``refuse``.
    """
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    try:
        cleaned = cleaner.clean(text)
    except RefusedTextError as error:
        raise RefusedTextError(f"{name}: {error}") from error
    removed = Counter(removal.kind for removal in cleaned.removals)
    return cleaned.text, counts_in_words(removed, Counter(span.kind for span in cleaned.reported))
