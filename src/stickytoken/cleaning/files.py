"""Clean the documents of a file. The output has the format of the input, and only texts change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

from stickytoken.cleaning import (
    MOST_ROUNDS,
    Cleaned,
    Cleaner,
    Removal,
    document_counts,
    sort_without_nested,
)
from stickytoken.cleaning.spans import Fix, SpanKind
from stickytoken.data.documents import Document
from stickytoken.data.rewriting import Cuts, Source, cut, rewrite
from stickytoken.data.rows import Meter, Skipped
from stickytoken.errors import InputError
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.validation import beginning
from stickytoken.words import counted

# Maximum number of unreadable records that a summary names.
_NAMED_RECORDS = 100
# Maximum number of documents with repetitions that a summary names.
_NAMED_REPETITIONS = 3
# Maximum number of characters of a repeated word or phrase that a summary shows.
_REPEATED_CHARACTERS = 40
# Progress is reported each time this many documents have been cleaned.
_PROGRESS_EVERY = 100


@dataclass(slots=True)
class CleaningTotals:
    """The totals of cleaning a file.

    Attributes:
        documents: Number of documents read.
        changed: Number of documents changed.
        set_aside: Number of documents that were written to the quarantine and not cleaned.
        emptied: Number of changed documents that have no text left.
        changed_by_cause: For each kind of finding, the number of documents changed because of a finding of
            this kind. A document can be counted under several kinds.
        left_by_cause: Number of documents that still contain findings of each kind.
        unsafe: Number of documents with findings that only unsafe fixes remove.
        unfixable: Number of documents with findings that no fix removes.
        repeated: Number of documents in which a repetition was removed, except for its first copy.
        first_repetitions: The repeated word or phrase and the id of the document, for at most 3 documents in
            which a repetition was removed.
        skipped: Number of unreadable records, which are written unchanged.
        skipped_first: The first unreadable records, at most 100.
        meter: What was read.
    """

    documents: int = 0
    changed: int = 0
    set_aside: int = 0
    emptied: int = 0
    changed_by_cause: Counter[SpanKind] = field(default_factory=Counter)
    left_by_cause: Counter[SpanKind] = field(default_factory=Counter)
    unsafe: int = 0
    unfixable: int = 0
    repeated: int = 0
    first_repetitions: list[tuple[str, str]] = field(default_factory=list)
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)

    def summary(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        return {
            "documents": self.documents,
            "changed": self.changed,
            "set_aside": self.set_aside,
            "emptied": self.emptied,
            "changed_by_cause": {kind.value: count for kind, count in self.changed_by_cause.items()},
            "left_by_cause": {kind.value: count for kind, count in self.left_by_cause.items()},
            "unsafe": self.unsafe,
            "unfixable": self.unfixable,
            "skipped": self.skipped,
            "skipped_first": [asdict(record) for record in self.skipped_first],
            "columns": self.meter.columns,
            "unread_columns": self.meter.unread,
        }

    def headline(self) -> str:
        """Return one line that says how many documents were changed or set aside, and why."""
        # One of the two is 0, because --quarantine changes no document.
        affected = self.changed + self.set_aside
        count_in_words, causes = document_counts(affected, self.documents, self.changed_by_cause)
        return f"{count_in_words} {'set aside' if self.set_aside else 'changed'}{causes}"

    def remarks(self) -> list[str]:
        """Return sentences on what was left in the documents, and on how to remove it."""
        remarks = []
        if self.repeated:
            remarks.append(self._say_first_copies_stay())
        for kind, count in sorted(self.left_by_cause.items()):
            verb = "has" if count == 1 else "have"
            remarks.append(f"{counted(count, 'document')} still {verb} {kind.phrase}")
        if self.unsafe:
            # Some of these may have been changed already, by safe fixes.
            documents = counted(self.unsafe, "document")
            remarks.append(f"--unsafe-fixes would remove more from {documents}: look at them first")
        if self.unfixable:
            remarks.append(
                f"{counted(self.unfixable, 'document')} cannot be cleaned without damage to a table, a tag, "
                "an address or code: edit them by hand, or set them aside with --quarantine"
            )
        if self.emptied:
            remarks.append(f"no text is left in {counted(self.emptied, 'document')}")
        return remarks

    def _say_first_copies_stay(self) -> str:
        examples = [f"{words!r} ({document})" for words, document in self.first_repetitions]
        others = self.repeated - len(examples)
        and_others = f", and others in {others:,} more" if others else ""
        return (
            "the first copy of each repetition stays, because it may belong there: "
            f"{', '.join(examples)}{and_others}"
        )


OnCleaned = Callable[[Document, Cleaned], None]


def clean_file(
    source: Source,
    cleaner: Cleaner,
    output: BinaryIO,
    *,
    quarantine: BinaryIO | None = None,
    on_cleaned: OnCleaned | None = None,
    compress: bool | None = None,
    progress: ProgressCallback = ignore_progress,
) -> CleaningTotals:
    """Clean every document of a file.

    Args:
        source: The file; see `open_source`.
        cleaner: What to remove.
        output: Where to write. After an error, the output is incomplete.
        quarantine: Where to write, unchanged, the documents that cleaning would change, instead of changing
            them. If None, they are cleaned.
        on_cleaned: Called with each changed document and the result of cleaning it.
        compress: Whether to compress the output with gzip. If None, the output is compressed if the source is
            compressed. Parquet files are never compressed with gzip, because Parquet compresses its own
            columns.
        progress: Called after every 100 documents with the number of documents done.

    Returns:
        The totals: how many documents were read, changed and skipped.

    Raises:
        InputError: The file cannot be read, has no document, or does not have the column with the texts.
    """
    totals = CleaningTotals()
    meter = totals.meter

    def revise(document: Document) -> Sequence[Cuts] | None:
        """Clean a document, count it, and return the cuts of its parts; None to set it aside."""
        totals.documents += 1
        share_read = meter.share
        if share_read and totals.documents % _PROGRESS_EVERY == 0:
            # The number of documents is not known before the end, so it is estimated from the bytes read.
            expected_documents = max(totals.documents + 1, round(totals.documents / share_read))
            progress(
                Progress("clean", totals.documents, expected_documents, totals.documents, unit="documents")
            )
        if quarantine is not None:
            # A finding in the template that joins the columns can't be removed from any column.
            in_column = _mark_columns(document)
            spans = [span for span in cleaner.find(document.text) if any(in_column[span.start : span.end])]
            if cleaner.would_change(spans):
                totals.set_aside += 1
                totals.changed_by_cause.update({span.kind for span in spans})
                return None
        cleaned, cuts_by_part = clean_document(cleaner, document)
        _count_document(totals, document, cleaned, cuts_by_part)
        if cleaned.removals and on_cleaned is not None:
            on_cleaned(document, cleaned)
        return cuts_by_part

    def skip(record: Skipped) -> None:
        totals.skipped += 1
        if len(totals.skipped_first) < _NAMED_RECORDS:
            totals.skipped_first.append(record)

    rewrite(source, output, revise, skip, set_aside=quarantine, compress=compress, meter=meter)
    done = totals.documents
    if not done:
        raise InputError(_say_nothing_was_read(source.name, totals))
    if done >= _PROGRESS_EVERY:
        progress(Progress("clean", done, done, done, unit="documents"))
    return totals


def clean_document(cleaner: Cleaner, document: Document) -> tuple[Cleaned, list[Cuts]]:
    """Clean the text of a document, and return the result and what to cut from each of its parts.

    The parts are the texts of its columns, which make up the text of the document. What stands between them,
    such as the words of a template, is in no record, so it cannot be removed. It may separate what cleaning
    the whole text would join, so what is left in the parts is cleaned again until nothing changes.
    """
    in_column = _mark_columns(document)
    text = document.text
    offsets: Sequence[int] = range(len(text))  # in the document, of the characters that are left
    removals: list[Removal] = []
    cuts_by_part: list[Cuts] = [[] for _ in document.parts]
    cleaned = cleaner.clean(text)
    for _ in range(MOST_ROUNDS):
        removals_of_round = []
        for removal in cleaned.removals:
            removed = [offset for offset in offsets[removal.start : removal.end] if in_column[offset]]
            if removed:
                removals_of_round.append(replace(removal, start=removed[0], end=removed[-1] + 1))
        if not removals_of_round:
            break
        removals = sort_without_nested([*removals, *removals_of_round])
        cuts_by_part = [_find_cuts(document, index, removals) for index in range(len(document.parts))]
        is_cut = _mark_ranges(document, cuts_by_part)
        offsets = [offset for offset in offsets if not is_cut[offset]]
        text = "".join(document.text[offset] for offset in offsets)
        if text == cleaned.text:
            break
        cleaned = cleaner.clean(text)
    spans = cleaned.reported if text == cleaned.text else cleaner.find(text)
    reported = [span for span in spans if any(in_column[offset] for offset in offsets[span.start : span.end])]
    return Cleaned(text, tuple(removals), tuple(reported)), cuts_by_part


def _mark_columns(document: Document) -> bytearray:
    # 1 for each character that is in a column, and 0 for what only the template has.
    return _mark_ranges(document, [[(0, len(part))] for part in document.parts])


def _mark_ranges(document: Document, ranges_by_part: Sequence[Cuts]) -> bytearray:
    """Return a byte for each character of a document, which is 1 in these ranges of its parts."""
    marks = bytearray(len(document.text))
    for part_starts, ranges in zip(document.starts, ranges_by_part, strict=True):
        for part_start in part_starts:
            for start, end in ranges:
                # White space at the ends of a filled template is not in the text.
                first = max(part_start + start, 0)
                last = max(first, min(part_start + end, len(marks)))
                marks[first:last] = b"\1" * (last - first)
    return marks


def _find_cuts(document: Document, part_index: int, removals: Sequence[Removal]) -> Cuts:
    """Return the ranges of a part of a document that removals cover, by offsets in the part.

    A part is the text of one column. Removals have offsets in the text of the document, in which a part
    begins several times if a template names its column several times.
    """
    part_length = len(document.parts[part_index])
    ranges = []
    for part_start in document.starts[part_index]:
        for removal in removals:
            start = max(removal.start - part_start, 0)
            end = min(removal.end - part_start, part_length)
            if start < end:
                ranges.append((start, end))
    cuts: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        # Where the part begins several times in the text, ranges may overlap in it, so they are joined.
        if cuts and start < cuts[-1][1]:
            cuts[-1] = (cuts[-1][0], max(end, cuts[-1][1]))
        else:
            cuts.append((start, end))
    return cuts


def _count_document(
    totals: CleaningTotals, document: Document, cleaned: Cleaned, cuts_by_part: Sequence[Cuts]
) -> None:
    """Add a document to the totals, by what was removed from it and what was left."""
    fixes = {span.fix for span in cleaned.reported}
    totals.left_by_cause.update({span.kind for span in cleaned.reported})
    if Fix.UNSAFE in fixes:
        totals.unsafe += 1
    if any(span.fix is Fix.NONE and span.is_certain for span in cleaned.reported):
        totals.unfixable += 1
    if not cleaned.removals:
        return
    totals.changed += 1
    cleaned_parts = map(cut, document.parts, cuts_by_part)
    has_text_left = any(map(str.strip, cleaned_parts))
    if not has_text_left:
        totals.emptied += 1
    totals.changed_by_cause.update({removal.kind for removal in cleaned.removals})
    repetition = _find_first_repetition(cleaned)
    if repetition is not None:
        totals.repeated += 1
        if len(totals.first_repetitions) < _NAMED_REPETITIONS:
            place = document.id or f"row {document.number + 1:,}"
            totals.first_repetitions.append((repetition, place))


def _say_nothing_was_read(name: str, totals: CleaningTotals) -> str:
    if not totals.skipped_first:
        return f"{name} is empty: pass documents"
    first = totals.skipped_first[0]
    noun = "record was" if totals.skipped == 1 else "records were"
    return (
        f"{name} has no readable document: {totals.skipped:,} {noun} skipped, the first of them "
        f"{first.place} ({first.reason})"
    )


def _find_first_repetition(cleaned: Cleaned) -> str | None:
    for removal in cleaned.removals:
        if removal.kind is SpanKind.REPETITION:
            return beginning(removal.what, _REPEATED_CHARACTERS)
    return None
