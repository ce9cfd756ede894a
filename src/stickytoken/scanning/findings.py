"""Documents as findings for code scanning: one per document, at its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stickytoken.findings import Finding, Level, Rule
from stickytoken.findings.repository import repository_path
from stickytoken.scanning.results import Scan, skipped_records

_COPIES, _SPECIAL, _REPEATED = "document-copies", "document-special-token", "document-repetition"

RULES = (
    Rule(
        _COPIES,
        "No document repeats a sticky token",
        "Copies of a sticky token change what a document is similar to, whatever it says. Remove them with "
        "`stickytoken clean`, or leave the document out of the index.",
        Level.ERROR,
    ),
    Rule(
        _SPECIAL,
        "No document contains the text of a special token",
        "A tokenizer may read this text as a control token, and some servers fail on it. Take it out with "
        "`stickytoken clean`.",
        Level.WARNING,
    ),
    Rule(
        _REPEATED,
        "No document repeats a word or phrase beyond what ordinary text does",
        "Many copies of any word draw a document toward it. Look whether the repetition belongs there.",
        Level.WARNING,
    ),
)
_RULE_OF_KIND = {"flagged": _COPIES, "special": _SPECIAL}
_LEVELS = {rule.id: rule.level for rule in RULES}


def scan_findings(scan: Scan, root: Path) -> Iterator[Finding]:
    """Yield one finding per document, the worst first.

    Args:
        scan: A scan.
        root: Root of the repository, which paths are relative to.
    """
    for row in scan.worst.iter_rows(named=True):
        rule = next((_RULE_OF_KIND[kind] for kind in _RULE_OF_KIND if kind in row["kinds"]), _REPEATED)
        path = None if row["path"] is None else repository_path(Path(row["path"]), root)
        yield Finding(
            rule=rule,
            level=Level.NOTE if row["matters"] is False else _LEVELS[rule],
            message=f"document {row['id']}: {described(row)}",
            path=path,
            line=row["line"],
            identity=(scan.record.model, row["id"], *(each["text"] for each in row["words"])),
            properties={
                name: row[name]
                for name in ("number", "source", "copies", "share", "effect", "severity")
                if row[name] is not None
            },
        )


def described(row: Mapping[str, Any]) -> str:
    """Say in a few words what was found in a document, and what it does if that is known."""
    words = ", ".join(
        f"{each['text']!r} \N{MULTIPLICATION SIGN} {each['copies']}" for each in row["words"][:3]
    )
    more = f" and {len(row['words']) - 3} more" if len(row["words"]) > 3 else ""
    effect = "" if row["effect"] is None else f"; effect {row['effect']:+.2f} SD, {row['severity']}"
    return f"{words}{more} ({row['share']:.0%} of the text){effect}"


def incomplete(scan: Scan) -> list[str]:
    """Say which records could not be scanned."""
    if not scan.result.skipped:
        return []
    first = scan.result.skipped_first[0]
    return [f"{skipped_records(scan.result.skipped)}, the first of them {first.place}: {first.reason}"]
