"""Print a check in the requested format."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.cli.output.console import (
    as_json,
    inform,
    print_document,
    print_error,
    print_line,
    print_table,
)
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.findings import Finding, Rule
    from stickytoken.gate import Check

_SHOWN = 50
_TOKENS = "sticky-token"
_SUITE = "stickytoken check"


class CheckFormat(StrEnum):
    """Formats of a check."""

    TABLE = "table"
    JSON = "json"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"


def show_check(check: Check, output_format: CheckFormat, out: Path | None) -> None:
    """Print a check, or write its document to a file and print the table.

    Raises:
        RunError: the file cannot be written.
    """
    if output_format is not CheckFormat.TABLE:
        text = _document(output_format, check.findings, check.rules, check.incomplete, check.summary())
        _give(text, out)
        if output_format is CheckFormat.GITHUB:
            print_line(check.headline())
    if output_format is CheckFormat.TABLE or out is not None:
        _print_table(check)
    for reason in check.incomplete:
        print_error(f"inconclusive: {reason}")
    for note in check.notes:
        inform(f"note: {note}")


def show_failure(reason: str, output_format: CheckFormat, out: Path | None) -> None:
    """Write a document for a check that failed early, so that a missing document is never read as a pass."""
    if output_format is not CheckFormat.TABLE:
        summary = {"outcome": "inconclusive", "incomplete": [reason], "findings": []}
        _give(_document(output_format, (), (), (reason,), summary), out)


def _document(
    output_format: CheckFormat,
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    incomplete: Sequence[str],
    summary: dict[str, Any],
) -> str:
    if output_format is CheckFormat.JUNIT:
        from stickytoken.findings.junit import junit

        return junit(findings, rules, _SUITE, incomplete)
    if output_format is CheckFormat.GITHUB:
        from stickytoken.findings.annotations import github_annotations

        return "".join(f"{line}\n" for line in github_annotations(findings, incomplete))
    document = summary
    if output_format is CheckFormat.SARIF:
        from stickytoken.findings.sarif import sarif

        document = sarif(findings, rules, __version__, incomplete)
    return as_json(document)


def _give(text: str, out: Path | None) -> None:
    if out is None:
        print_document(text)
        return
    from stickytoken.measurement.atomic import make_folder, write_atomically

    make_folder(out.absolute().parent)
    write_atomically(out.absolute(), text.encode("utf-8"))
    inform(f"written: {out}")


def _print_table(check: Check) -> None:
    """Print the outcome first, then the tokens that count, or all sticky ones."""
    print_line(check.headline())
    tokens = [finding for finding in check.findings if finding.rule == _TOKENS]
    shown = tokens[:_SHOWN]
    if shown:
        changes = check.baseline is not None
        names = ("token_id", "token", "severity", "lift", "effect_low", "effect_high", "change")
        titles = ("level", "id", "token", "severity", "lift", "SD low", "SD high", "against the baseline")
        digits = (None, None, None, None, 4, 2, 2, None)
        width = len(titles) if changes else len(titles) - 1
        rows = [
            (finding.level.value, *(finding.properties.get(name) for name in names))[:width]
            for finding in shown
        ]
        print_table(f"{len(shown)} of {len(tokens)} sticky tokens", titles[:width], rows, digits[:width])
    _print_documents([finding for finding in check.findings if finding.rule != _TOKENS])
    print_line(f"run: {check.run}" + ("" if check.baseline is None else f"; baseline: {check.baseline}"))


def _print_documents(findings: Sequence[Finding]) -> None:
    shown = findings[:_SHOWN]
    if shown:
        rows = [(finding.level.value, finding.rule, finding.message) for finding in shown]
        title = f"{len(shown)} of {len(findings)} documents with findings"
        print_table(title, ("level", "rule", "document"), rows)
