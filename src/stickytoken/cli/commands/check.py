"""stickytoken check: decide whether a model can ship."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stickytoken.cli._loading import command, silence_transformers_once_loaded
from stickytoken.cli.options.output import METHOD, MODEL, OUTPUT, TEXTS, VerbosityOptions
from stickytoken.cli.output.console import (
    as_json,
    inform,
    print_document,
    print_error,
    print_line,
    print_table,
)
from stickytoken.cli.output.progress import progress_bar
from stickytoken.errors import StickyTokenError
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.findings import Finding, Rule
    from stickytoken.gate import Check
    from stickytoken.gate.project_settings import Project

_STATUS = {"passed": 0, "closed": 10, "inconclusive": 1}
# Written down here, because --help loads nothing of what a check needs.
_GRADES = ("sticky", "serious", "severe")
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


def _grade(name: str) -> str:
    if name not in _GRADES:
        raise typer.BadParameter(f"{name!r} is not a severity: use one of {', '.join(_GRADES)}")
    return name


@command
def check(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|RUN]",
            help="Model as for detect, or run folder. Default: model in the table tool.stickytoken of "
            "pyproject.toml, which can also set the options from --revision to --max.",
        ),
    ] = None,
    *,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=MODEL)
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="For a model: the folder of its runs, or a run folder. Default: runs.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            parser=_grade,
            autocompletion=lambda: list(_GRADES),
            metavar="sticky|serious|severe",
            help="Lowest grade that counts; sticky counts every sticky token. Default: sticky.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=0,
            help="Number of counted tokens to tolerate. Default: 0.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to compare with: only tokens that are new or worse count, where the intervals "
            "of the two runs do not overlap.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="Documents to search as for scan; copies of a flagged token in one close the gate.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Column with the text. Default: found by name.", rich_help_panel=TEXTS),
    ] = None,
    output_format: Annotated[
        CheckFormat,
        typer.Option(
            "--format",
            "-f",
            help="Print a table, one JSON document, JUnit XML, SARIF 2.1.0, or GitHub annotations.",
            rich_help_panel=OUTPUT,
        ),
    ] = CheckFormat.TABLE,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the JSON, JUnit or SARIF document; the table is still printed.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    verbosity: VerbosityOptions,
) -> None:
    """Check whether a model can ship. Exit status: 0 passed, 10 gate closed, 1 failed or inconclusive.

    Example: stickytoken check all-MiniLM-L6-v2 --fail-on serious
    """
    if out is not None and output_format not in (CheckFormat.JSON, CheckFormat.JUNIT, CheckFormat.SARIF):
        raise typer.BadParameter("it needs --format json, junit or sarif", param_hint="--out")
    try:
        from stickytoken.gate import check as run_check
        from stickytoken.gate.project_settings import read_project

        project = read_project(Path.cwd())
        options = _options(
            project,
            revision=revision,
            folder=folder,
            documents=documents,
            column=column,
            fail_on=fail_on,
            max_tokens=max_tokens,
            baseline=baseline,
        )
        named = project.settings.model if source is None else source
        if named is None:
            raise typer.BadParameter(
                "pass a model or a run folder, or name a model in the table tool.stickytoken of "
                "pyproject.toml",
                param_hint="[MODEL|RUN]",
            )
        silence_transformers_once_loaded()
        with progress_bar() as progress:
            found = run_check(named, **options, place=project.place, progress=progress)
    except StickyTokenError as error:
        _show_failure(str(error), output_format, out)
        raise
    _show_check(found, output_format, out)
    status = _STATUS[found.outcome.value]
    if status:
        raise typer.Exit(status)


def _options(project: Project, **given: Any) -> dict[str, Any]:
    """Return the options of the library: those of the command line first, then those of the project."""
    settings = {name: getattr(project.settings, name) for name in given}
    return {
        name: settings[name] if value is None else value
        for name, value in given.items()
        if value is not None or settings[name] is not None
    }


def _show_check(check: Check, output_format: CheckFormat, out: Path | None) -> None:
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


def _show_failure(reason: str, output_format: CheckFormat, out: Path | None) -> None:
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
        from stickytoken.findings import junit

        return junit(findings, rules, _SUITE, incomplete)
    if output_format is CheckFormat.GITHUB:
        from stickytoken.findings import github_annotations

        return "".join(f"{line}\n" for line in github_annotations(findings, incomplete))
    document = summary
    if output_format is CheckFormat.SARIF:
        from stickytoken.findings import sarif

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
