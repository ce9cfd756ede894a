"""Find and remove copies of sticky tokens, special tokens written as text, and repetitions in documents.

A cleaner loads without torch, NumPy or Polars, so that an ingestion service can use it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from stickytoken.cleaning._units import (
    INVISIBLE,
    key_function as key_function,  # audits compare words as a scan does
)
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.cleaning.spans import Fix, Span, SpanFinder, SpanKind, find_spans, finder_of
from stickytoken.errors import InputError, reading
from stickytoken.validation import file_path, require_switch, shown

if TYPE_CHECKING:
    from stickytoken.detection import Run

__all__ = [
    "Cleaned",
    "Cleaner",
    "CleaningRules",
    "Fix",
    "Removal",
    "Span",
    "SpanKind",
    "find_spans",
]


_FORMAT = "stickytoken cleaner"
_WRITE_RULES = "write one with `stickytoken clean RUN --rules-out FILE` or `Cleaner.save`"
_TYPE_OF_ENTRY: Mapping[str, type] = {"rules": dict, "source": dict}


@dataclass(frozen=True, slots=True)
class Removal:
    """A part of a text that was removed.

    Attributes:
        start: Offset of the part's first character in the original text.
        end: Offset after the part's last character in the original text.
        kind: Kind of the finding.
        what: The word, phrase or special token that was found.

    Examples:
        >>> (removal,) = stickytoken.Cleaner.from_run(run).clean("a [SEP] bird").removals
        >>> removal.what, removal.start, removal.end
        ('[SEP]', 2, 8)
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
        removals: The parts that were removed, in order, with offsets in the original text. The first copy of
            a repetition is not removed.
        reported: The findings that were left in the text, with offsets in the cleaned text.

    Examples:
        >>> cleaned = stickytoken.Cleaner.from_run(run).clean("a [SEP] bird")
        >>> cleaned.text, len(cleaned.removals), cleaned.reported
        ('a bird', 1, ())
    """

    text: str
    removals: tuple[Removal, ...]
    reported: tuple[Span, ...]


class Cleaner:
    """Removes copies of sticky tokens and special tokens written as text, and nothing else.

    By default, it removes what is certain: flagged tokens in a row, and special tokens. All other findings
    are reported, because they may be part of the document. A cleaner is thread-safe.

    Args:
        rules: What to look for.
        unsafe_fixes: Remove the other findings too, if nothing would break. The first copy of a repetition
            stays.
        source: Where the rules come from; used only as a record in the saved file.

    Raises:
        InputError: An argument has the wrong type.

    Examples:
        >>> cleaner = stickytoken.Cleaner.from_run(run)
        >>> cleaner("a [SEP] bird")
        'a bird'
        >>> cleaner.clean("a [SEP] bird").removals
        (Removal(start=2, end=8, kind=<SpanKind.SPECIAL: 'special'>, what='[SEP]'),)
    """

    def __init__(
        self, rules: CleaningRules, *, unsafe_fixes: bool = False, source: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(rules, CleaningRules):
            raise InputError(f"rules is {shown(rules)}: pass CleaningRules, or use Cleaner.from_run")
        require_switch("unsafe_fixes", unsafe_fixes)
        self.rules = rules
        self.unsafe_fixes = unsafe_fixes
        self.source = dict(source or {})

    def __repr__(self) -> str:
        return f"<Cleaner: {len(self.rules.words):,} words, {len(self.rules.specials):,} special tokens>"

    @classmethod
    def from_run(cls, run: Run | str | Path, *, unsafe_fixes: bool = False) -> Cleaner:
        """Return a cleaner for the tokens that a run flags and the special tokens of its model.

        Args:
            run: A finished run, or its folder.
            unsafe_fixes: See `Cleaner`.

        Raises:
            RunError: The folder is not a run, is damaged or is not finished.
        """
        from stickytoken.detection.run import open_run

        opened = open_run(run)
        record = opened.record
        source = {"model": record.model.name, "method": record.method, "identity": record.identity}
        return cls(rules_of_run(opened), unsafe_fixes=unsafe_fixes, source=source)

    @classmethod
    def from_file(cls, path: str | Path, *, unsafe_fixes: bool = False) -> Cleaner:
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
        return cls._from_document(document, str(rules_path), unsafe_fixes)

    @classmethod
    def from_json(cls, value: object) -> Cleaner:
        """Make a cleaner from what `to_json` returned.

        Raises:
            InputError: The value is not a cleaner.
        """
        # A value of another type is refused by `_from_document`.
        is_unsafe = isinstance(value, Mapping) and value.get("unsafe_fixes", False)
        return cls._from_document(value, shown(value), is_unsafe)

    @classmethod
    def _from_document(cls, document: object, name: str, unsafe_fixes: bool) -> Cleaner:
        """Make a cleaner of the JSON values of a rules file, which errors call ``name``."""
        if not isinstance(document, Mapping) or document.get("format") != _FORMAT:
            raise InputError(f"{name} is not a rules file: {_WRITE_RULES}")
        for entry, expected_type in _TYPE_OF_ENTRY.items():
            if not isinstance(document.get(entry), expected_type):
                raise InputError(f"{name} is damaged: its entry {entry!r} is missing or of the wrong type")
        for entry, value in document.items():
            # Earlier versions wrote more, which chose what to do with findings.
            if entry not in ("format", "unsafe_fixes", *_TYPE_OF_ENTRY):
                raise InputError(
                    f"{name} has the entry {entry!r} with the value {shown(value)}, which this version of "
                    "stickytoken does not follow: write the rules again with `stickytoken clean RUN "
                    "--rules-out FILE`, and choose what to do with --unsafe-fixes or --quarantine"
                )
        try:
            rules = CleaningRules.from_json(document["rules"])
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        return cls(rules, unsafe_fixes=unsafe_fixes, source=document["source"])

    def to_json(self) -> dict[str, Any]:
        """Return the cleaner as JSON values, from which `from_json` makes an equal cleaner."""
        return {
            "format": _FORMAT,
            "rules": self.rules.to_json(),
            "source": dict(self.source),
            "unsafe_fixes": self.unsafe_fixes,
        }

    def save(self, path: str | Path) -> None:
        """Write the rules as a JSON file, without ``unsafe_fixes``, on which whoever reads the file decides.

        Raises:
            RunError: The file cannot be written.
        """
        from stickytoken.measurement.store import write_atomically

        values = self.to_json()
        del values["unsafe_fixes"]
        document = json.dumps(values, indent=2) + "\n"
        write_atomically(file_path("the rules file", path), document.encode("ascii"))

    def __call__(self, text: str) -> str:
        return self.clean(text).text

    def find(self, text: str) -> list[Span]:
        """Return the findings in a text.

        Raises:
            InputError: The text is not a string.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {shown(text)}: pass a string")
        return finder_of(self.rules).find(text)

    def clean(self, text: str) -> Cleaned:
        """Clean a text until no finding is left that may be removed.

        Returns:
            The cleaned text, with a record of what was removed and what was left.

        Raises:
            InputError: The text is not a string.
        """
        spans = self.find(text)
        fixes = {Fix.SAFE, Fix.UNSAFE} if self.unsafe_fixes else {Fix.SAFE}
        return _remove_findings(text, spans, finder_of(self.rules), fixes)

    def without_findings(self, text: str) -> str:
        """Return a text without any finding, whatever breaks: to measure what copies do, not for an index."""
        return _remove_findings(text, self.find(text), finder_of(self.rules), set(Fix)).text

    def would_change(self, spans: Iterable[Span]) -> bool:
        """Return whether findings are such that cleaning removes them, or would if nothing broke.

        A document with such findings is set aside by ``clean --quarantine``.
        """
        for span in spans:
            if span.is_html_tag:  # ordinary pages have some
                continue
            only_breakage_keeps_it = span.fix is Fix.NONE and span.is_certain
            if self.unsafe_fixes or span.fix is Fix.SAFE or only_breakage_keeps_it:
                return True
        return False


# Ordinary texts are clean after one or two rounds. What is nested more deeply to evade cleaning stays, and is
# reported.
MOST_ROUNDS = 8


def _remove_findings(text: str, spans: list[Span], finder: SpanFinder, fixes: set[Fix]) -> Cleaned:
    draft = _Draft(text)
    for _ in range(MOST_ROUNDS):
        removable = [span for span in spans if span.fix in fixes]
        if not removable:
            break
        if any(span.is_special for span in removable):
            _remove_specials(draft, removable, finder, fixes)
        else:
            # Copies of flagged words go first: between them, ordinary words may look like suspected copies.
            flagged = [span for span in removable if span.kind is SpanKind.FLAGGED]
            draft.remove(flagged if flagged else removable)
        # What is left can form another finding, as in "<|endof<|endoftext|>text|>".
        spans = finder.find(draft.text)
    return Cleaned(draft.text, tuple(draft.removals), tuple(spans))


def _remove_specials(draft: _Draft, spans: Iterable[Span], finder: SpanFinder, fixes: set[Fix]) -> None:
    specials = [span for span in spans if span.is_special]
    for _ in range(MOST_ROUNDS):
        if not specials:
            return
        draft.remove(specials)
        # What is left can form other special tokens.
        specials = [span for span in finder.find_only_specials(draft.text) if span.fix in fixes]


class _Draft:
    """A text from which parts are removed in rounds.

    Attributes:
        text: What is left of the text.
        removals: What was removed, in order, with offsets in the original text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.removals: list[Removal] = []
        self._original = text
        # Where each part that is left starts in ``text``, and what to add to its offsets in ``text`` to get
        # those in the original.
        self._part_starts = [0]
        self._part_shifts = [0]

    def remove(self, spans: Sequence[Span]) -> None:
        """Remove spans of the current text, and record them with their offsets in the original.

        ``spans`` are in order and do not overlap.
        """
        # The first copy of a repetition stays.
        starts = [span.first_end if span.kind is SpanKind.REPETITION else span.start for span in spans]
        ends = [span.end for span in spans]
        for first, stop in _group_by_spaces(self.text, starts, ends):
            # The spaces between findings go with the one before, and the space around all of them once.
            group_start, group_end = _extend_to_space(self.text, starts[first], ends[stop - 1])
            removal_starts = [group_start, *starts[first + 1 : stop]]
            removal_ends = [*starts[first + 1 : stop], group_end]
            if _would_join(self.text, group_start, group_end):
                # One of the spaces that separated the two sides stays.
                for index in range(first, stop - 1):
                    if ends[index] < starts[index + 1]:
                        removal_ends[index - first] -= 1
                        break
            for span, start, end in zip(spans[first:stop], removal_starts, removal_ends, strict=True):
                original_start = self._find_in_original(start)
                # Map the last removed character, not `end`: between the two, an earlier round may have
                # removed a part that must stay out of this removal.
                original_end = self._find_in_original(end - 1) + 1
                self.removals.append(Removal(original_start, original_end, span.kind, span.what))
        self.removals = sort_without_nested(self.removals)
        self._keep_what_is_between_removals()

    def _find_in_original(self, offset: int) -> int:
        part = bisect_right(self._part_starts, offset) - 1  # the part that contains the offset
        return offset + self._part_shifts[part]

    def _keep_what_is_between_removals(self) -> None:
        kept_starts = [0, *(removal.end for removal in self.removals)]
        kept_ends = [*(removal.start for removal in self.removals), len(self._original)]
        kept_parts = []
        kept_length = 0  # where the next part starts in the new text
        self._part_starts = []
        self._part_shifts = []
        for start, end in zip(kept_starts, kept_ends, strict=True):
            if start < end:
                kept_parts.append(self._original[start:end])
                self._part_starts.append(kept_length)
                self._part_shifts.append(start - kept_length)
                kept_length += end - start
        self.text = "".join(kept_parts)


def sort_without_nested(removals: Iterable[Removal]) -> list[Removal]:
    """Return removals in order, without those inside a later removal, which covers them."""
    outermost: list[Removal] = []
    for removal in sorted(removals, key=lambda removal: (removal.start, -removal.end)):
        if not outermost or removal.end > outermost[-1].end:
            outermost.append(removal)
    return outermost


def _group_by_spaces(text: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the groups of parts of a text that only spaces separate, as ranges of their indices."""
    first = 0
    for index in range(1, len(starts) + 1):
        is_end = index == len(starts) or text[ends[index - 1] : starts[index]].strip(" ") != ""
        if is_end:
            yield first, index
            first = index


# Punctuation that follows a word without a space.
_CLOSING = frozenset(".,;:!?)]}\u2026\u3001\u3002")


def _extend_to_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a part that is removed to the space that came with it, and return its new start and end.

    After the removal, the text has no two spaces in a row there, and no space before punctuation. Invisible
    characters attached to the part are removed too. Line breaks and tabs stay, because they are structure.
    """
    while end < len(text) and text[end] in INVISIBLE:
        end += 1
    invisible_start = start
    while invisible_start > 0 and text[invisible_start - 1] in INVISIBLE:
        invisible_start -= 1
    # Invisible characters behind the part always go. Those before it stay if otherwise two words would be
    # joined.
    no_word_before = invisible_start == 0 or text[invisible_start - 1].isspace()
    no_word_after = end == len(text) or text[end].isspace()
    if no_word_before or no_word_after:
        start = invisible_start
    # The beginning and the end of the text count as line breaks.
    before = text[start - 1] if start else "\n"
    after = text[end] if end < len(text) else "\n"
    if before.isspace() and after == " ":
        end += 1
    elif before == " " and (after.isspace() or after in _CLOSING):
        start -= 1
    return start, end


def _would_join(text: str, start: int, end: int) -> bool:
    if start == 0 or end == len(text):
        return False
    before = text[start - 1]
    after = text[end]
    return not before.isspace() and not after.isspace() and after not in _CLOSING


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
    count: int, document_total: int, count_by_cause: Mapping[SpanKind, int] | Mapping[str, int]
) -> tuple[str, str]:
    """Return a phrase for a number of documents, and a list of the causes with the number for each cause.

    Example: "3 of 1,400 documents" and " (flagged token: 2, repetition: 1)"; the list is empty if no document
    has a cause. A document with two causes is counted under both causes.
    """
    noun = "document" if document_total == 1 else "documents"
    count_phrase = f"{count:,}" if count else "none"
    count_phrase += f" of {document_total:,} {noun}"
    count_by_kind: dict[str, int] = dict(count_by_cause.items())  # a kind is equal to the string of its value
    causes = [f"{kind.cause}: {count_by_kind[kind]:,}" for kind in SpanKind if count_by_kind.get(kind)]
    cause_list = f" ({', '.join(causes)})" if causes else ""
    return count_phrase, cause_list


def counts_in_words(removed: Mapping[SpanKind, int], remaining: Mapping[SpanKind, int]) -> str:
    """Return how many findings of each kind were removed and are left: "4 flagged, 1 repetition left"."""
    phrases = [f"{count:,} {kind.value}" for kind, count in sorted(removed.items())]
    phrases += [f"{count:,} {kind.value} left" for kind, count in sorted(remaining.items())]
    return ", ".join(phrases)


NOTE = "stickytoken"  # metadata key under which a document gets a note on what was found


def clean_text(cleaner: Cleaner, text: str, name: str) -> tuple[str, str]:
    """Clean a text, and describe what was found.

    Args:
        cleaner: The cleaner.
        text: The text.
        name: How errors refer to the text.

    Returns:
        The cleaned text, and a phrase with the numbers of findings, which is empty if nothing was found.

    Raises:
        InputError: The text is not a string.
    """
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    cleaned = cleaner.clean(text)
    removed = Counter(removal.kind for removal in cleaned.removals)
    remaining = Counter(span.kind for span in cleaned.reported)
    return cleaned.text, counts_in_words(removed, remaining)
