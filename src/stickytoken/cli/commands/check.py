"""stickytoken check: decide whether a model can ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stickytoken.cli._command import command
from stickytoken.cli._loading import silence_transformers_once_loaded
from stickytoken.cli.options.output import VerbosityOptions
from stickytoken.cli.options.panels import METHOD, MODEL, OUTPUT, TEXTS
from stickytoken.cli.output.check import CheckFormat, show_check, show_failure
from stickytoken.cli.output.progress import progress_bar
from stickytoken.errors import StickyTokenError

if TYPE_CHECKING:
    from stickytoken.gate.project_settings import Project

_STATUS = {"passed": 0, "closed": 10, "inconclusive": 1}
# Written down here, because --help loads nothing of what a check needs.
_GRADES = ("sticky", "serious", "severe")


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
        show_failure(str(error), output_format, out)
        raise
    show_check(found, output_format, out)
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
