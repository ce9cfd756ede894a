"""What a scan says: in sentences, and as findings for build servers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from stickytoken.cleaning import document_counts
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data.documents import STDIN_COLLECTION
from stickytoken.findings import STDIN_NAME, Finding, Level, Rule, place_of
from stickytoken.scanning.results import Scan
from stickytoken.words import counted


def headline(scan: Scan) -> str:
    """Return a sentence that says how many documents have findings of which kinds."""
    result = scan.result
    found, causes = document_counts(result.found, result.documents, certain_kinds(result.kinds))
    verb = "has" if result.found <= 1 else "have"  # "none has"
    sentence = f"{found} {verb} findings"
    if result.found:
        sentence += causes
    if result.suspected:
        more = " more" if result.found else ""
        verb = "is" if result.suspected == 1 else "are"
        sentence += f"; {result.suspected:,}{more} {verb} only suspected"
    return sentence


def source_table(scan: Scan, most: int) -> tuple[list[str], list[list[Any]]]:
    """Return the headings and the rows of a table of sources with findings, at most ``most`` of them."""
    sources_with_findings = [source for source in scan.result.sources if source.found]
    rows: list[list[Any]] = [
        [source.source or "(none)", source.documents, source.found] for source in sources_with_findings[:most]
    ]
    return ["source", "documents", "with findings"], rows


def certain_kinds(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of documents by kind of finding, without suspected copies."""
    return {kind: count for kind, count in kinds.items() if kind != SpanKind.SUSPECTED}


def count_skipped(count: int) -> str:
    """Return a phrase with the number of skipped records, such as "3 records were skipped"."""
    return counted(count, "record was skipped", "records were skipped")


_COPIES = "document-copies"
_SPECIAL = "document-special-token"
_REPEATED = "document-repetition"
_SUSPECTED = "document-suspected"

RULES = (
    Rule(
        _COPIES,
        "No document repeats a sticky token",
        "Copies of a sticky token change the similarities of a document, whatever its content. Remove the "
        "copies with `stickytoken clean`, or leave the document out of the index.",
        Level.ERROR,
    ),
    Rule(
        _SPECIAL,
        "No document contains the text of a special token",
        "A tokenizer may read this text as a control token, and some servers fail on it. Remove it with "
        "`stickytoken clean`.",
        Level.WARNING,
    ),
    Rule(
        _REPEATED,
        "No document repeats a word or phrase beyond what ordinary text does",
        "Many copies of any word move a document toward it. Check whether the repetition belongs there.",
        Level.WARNING,
    ),
    Rule(
        _SUSPECTED,
        "No document seems to have copies of a word among other words",
        "Copies seem to have been inserted into this text, but ordinary text may look like this too. Check "
        "the document; `stickytoken clean --unsafe-fixes` removes the copies.",
        Level.NOTE,
    ),
)
_RULE_OF = {
    SpanKind.FLAGGED: _COPIES,
    SpanKind.SPECIAL: _SPECIAL,
    SpanKind.REPETITION: _REPEATED,
    SpanKind.SUSPECTED: _SUSPECTED,
}
_KIND_OF = {rule: kind for kind, rule in _RULE_OF.items()}
_LEVELS = {rule.id: rule.level for rule in RULES}
_PROPERTIES = ("number", "source", "copies", "share")


def cause_of(finding: Finding) -> str:
    """Return the cause of a finding in a document, in words, such as ``flagged token``."""
    return _KIND_OF[finding.rule].cause


def scan_findings(scan: Scan, failing_kinds: Collection[str] = (SpanKind.FLAGGED,)) -> Iterator[Finding]:
    """Yield one finding per document, the worst document first.

    A document with findings of several kinds is reported under a single kind. In the order of `SpanKind`,
    this is the first kind that is in ``failing_kinds``; if none of the document's kinds is in
    ``failing_kinds``, the document is reported under the first of its kinds.

    Args:
        scan: a finished scan.
        failing_kinds: kinds of findings that are reported as errors.
    """
    for row in scan.worst.iter_rows(named=True):
        kinds = [kind for kind in SpanKind if kind in row["kinds"]]
        failing = [kind for kind in kinds if kind in failing_kinds]
        rule = _RULE_OF[failing[0] if failing else kinds[0]]
        # A file in the repository is named by `path`, a file outside the repository by `outside`; see
        # `Finding`.
        path = None
        outside = None
        if row["path"] is not None:
            path, outside = place_of(Path(row["path"]))
        elif scan.record.documents == STDIN_COLLECTION:
            outside = STDIN_NAME
        yield Finding(
            rule=rule,
            level=Level.ERROR if failing else _LEVELS[rule],
            message=f"document {row['id']}: {describe_findings(row, _KIND_OF[rule])}",
            path=path,
            outside=outside,
            line=row["line"],
            # Several files may have a document of this id, such as "line 1".
            identity=(scan.record.model, path or "", row["id"], *(word["text"] for word in row["words"])),
            properties={name: row[name] for name in _PROPERTIES if row[name] is not None},
        )


# Maximum number of words that the description of a document names.
_NAMED_WORDS = 3


def describe_findings(row: Mapping[str, Any], kind: SpanKind) -> str:
    """Describe the findings of a document: words with numbers of copies, and their share of the text.

    Args:
        row: A row of `Scan.documents`.
        kind: The kind of the findings whose words are named.
    """
    words = [word for word in row["words"] if word["kind"] == kind]
    if not words:  # a scan keeps only a few words of a document, which may all be findings of other kinds
        words = row["words"]
    description = ", ".join(
        f"{word['text']!r} \N{MULTIPLICATION SIGN} {word['copies']}" for word in words[:_NAMED_WORDS]
    )
    if len(words) > _NAMED_WORDS:
        description += f" and {len(words) - _NAMED_WORDS} more"
    return f"{description} ({row['share']:.0%} of the text)"


def find_gaps(scan: Scan) -> list[str]:
    """Return the reasons why a scan may have missed documents; empty if it read all of them."""
    if not scan.result.skipped:
        return []
    first = scan.result.skipped_first[0]
    return [f"{count_skipped(scan.result.skipped)}, the first of them {first.place}: {first.reason}"]
