"""stickytoken clean: a filter that removes copies of sticky tokens, special tokens and runs from lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import OUTPUT, VerbosityOptions
from stickytoken.cli.options.texts import Actions, LineFormat, LineOutput, parsed_actions
from stickytoken.cli.output.console import inform, print_json, print_line
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.cleaning import Action, Cleaner, SpanKind
    from stickytoken.cleaning.cleaner import CleanedLine, LineTotals


@command
def clean(
    rules: Annotated[
        Path,
        typer.Argument(metavar="RUN|RULES", help="Run folder, or a file that --rules-out wrote."),
    ],
    file: Annotated[
        Path, typer.Argument(help="File of UTF-8 lines; - is standard input.", show_default=True)
    ] = Path("-"),
    action: Actions = None,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Print the changed lines only, before and after.", rich_help_panel=OUTPUT
        ),
    ] = False,
    rules_out: Annotated[
        Path | None,
        typer.Option(
            help="Write the cleaner as a small JSON file that needs no run, and read no lines unless FILE "
            "is given.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    *,
    output_format: LineOutput = LineFormat.TEXT,
    verbosity: VerbosityOptions,
) -> None:
    """Remove copies of the tokens that a run flags, special tokens and runs from lines of text.

    Every line is written back, and nothing else in it is touched. What was done is said on stderr.

    Example: stickytoken clean runs/minilm documents.txt --diff
    """
    del verbosity
    from stickytoken.cleaning.cleaner import LineTotals, clean_lines

    if diff and output_format is LineFormat.JSON:
        raise typer.BadParameter("use one of --diff and --format json", param_hint="--diff")
    cleaner = _cleaner(rules, parsed_actions(action))
    if rules_out is not None:
        cleaner.save(rules_out)
        inform(
            f"{rules_out}: {len(cleaner.rules.words):,} words, {len(cleaner.rules.specials):,} special tokens"
        )
        if file == Path("-"):
            return
    totals = LineTotals()
    with _opened(file) as stream:
        lines = clean_lines(stream, cleaner, totals)
        if output_format is LineFormat.JSON:
            removals = [removal for line in lines for removal in _removals(line)]
            print_json(_document(totals, removals))
        else:
            _write(lines, diff=diff)
    _tell(totals, file)


def _cleaner(source: Path, actions: dict[SpanKind, Action]) -> Cleaner:
    from stickytoken.cleaning import Cleaner
    from stickytoken.cleaning.cleaner import open_cleaner

    read = open_cleaner(source)
    return Cleaner(read.rules, read.actions | actions, replacement=read.replacement, source=read.source)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file == Path("-"):
        yield sys.stdin.buffer
        return
    try:
        with file.open("rb") as stream:
            stream.read(0)
            yield stream
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error


def _write(lines: Iterable[CleanedLine], *, diff: bool) -> None:
    for line in lines:
        if not diff:
            sys.stdout.buffer.write(line.content)
        elif line.cleaned.text != line.before:
            print_line(f"line {line.number}")
            print_line(f"- {line.before}")
            print_line(f"+ {line.cleaned.text}")


def _removals(line: CleanedLine) -> Iterator[dict[str, Any]]:
    for removal in line.cleaned.removals:
        yield {
            "line": line.number,
            "start": removal.start,
            "end": removal.end,
            "kind": removal.kind.value,
            "what": removal.what,
            "text": line.before[removal.start : removal.end],
        }


def _document(totals: LineTotals, removals: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "lines": totals.lines,
        "changed": totals.changed,
        "removed": {kind.value: count for kind, count in totals.removed.items()},
        "reported": {kind.value: count for kind, count in totals.reported.items()},
        "not_utf8": totals.undecoded,
        "removals": removals,
    }


def _tell(totals: LineTotals, file: Path) -> None:
    """Say on stderr what was done."""
    from stickytoken.cleaning.cleaner import counts_in_words

    counts = counts_in_words(totals.removed, totals.reported)
    found = f" ({counts})" if counts else ""
    inform(f"{totals.changed:,} of {totals.lines:,} lines changed{found}")
    if totals.first_undecoded is not None:
        line, byte = totals.first_undecoded
        name = "standard input" if file == Path("-") else str(file)
        inform(
            f"{totals.undecoded:,} of {totals.lines:,} lines of {name} are not UTF-8, first line {line:,} at "
            f"byte {byte:,}; passed through unchanged"
        )
