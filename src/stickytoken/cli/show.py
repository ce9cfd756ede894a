"""stickytoken show: look into a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli.categories import known_category
from stickytoken.cli.errors import reported
from stickytoken.cli.options import Format, OutputFormat
from stickytoken.cli.output import print_json
from stickytoken.cli.results import print_rows, show_run
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.detection import Run

_LISTED = 50


@reported
def show(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    token: Annotated[
        str | None, typer.Option(help="Show one token, by vocabulary string or text.", show_default=False)
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(help="List tokens of this verdict, such as sticky or benign.", show_default=False),
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="List tokens of this category.", show_default=False)
    ] = None,
    contains: Annotated[
        str | None, typer.Option(help="List tokens whose text contains this.", show_default=False)
    ] = None,
    validated: Annotated[
        bool,
        typer.Option("--validated", help="List only tokens with a verdict, where not every token gets one."),
    ] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort the list by this column, largest first; lift, for example.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Tokens to list. Default: 50.", show_default=False)
    ] = None,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Show the sticky tokens of a run, or list its tokens by filters.

    Example: stickytoken show runs/all-MiniLM-L6-v2-profile-0123456789ab --verdict topical --limit 20
    """
    import polars as pl

    from stickytoken.detection import open_run

    category = known_category(category)
    if contains == "":
        raise InputError("contains is '': there is nothing to look for; pass a part of a token's text")
    found = open_run(run)
    if not any((token is not None, verdict, category, contains, validated, sort, limit)):
        show_run(found, output_format)
        return
    _require_of(found, verdict, validated, sort)
    rows = found.token(token) if token is not None else found.tokens
    if verdict:
        rows = rows.filter(verdict=verdict)
    if category:
        rows = rows.filter(category=category)
    if contains:
        rows = rows.filter(pl.col("decoded").str.contains(contains, literal=True))
    if validated:
        rows = rows.filter(pl.col("verdict").is_not_null())
    if sort:
        rows = rows.sort(sort, "token_id", descending=[True, False], nulls_last=True)
    listed = rows.head(limit or _LISTED)
    if output_format is Format.JSON:
        print_json(found.summary() | {"tokens": listed.to_dicts()})
        return
    print_rows(f"{len(listed)} of {len(rows)} tokens", found, listed)


def _require_of(run: Run, verdict: str | None, validated: bool, sort: str | None) -> None:
    """Refuse what the method of a run does not know.

    Raises:
        InputError: names it.
    """
    method, whose = run.method, f"the run in {run.path} is of the method {run.record.method}"
    sortable = [column.key for column in method.listed if run.tokens[column.key].dtype.is_numeric()]
    if sort is not None and sort not in sortable:
        raise InputError(f"{whose}, which cannot be sorted by {sort!r}: sort by {', '.join(sortable)}")
    if validated and method.judges_every_token:
        raise InputError(f"{whose}, which judges every token: leave --validated out, or list by --verdict")
    if verdict is not None and verdict not in method.verdicts:
        raise InputError(f"{whose}, which has no verdict {verdict!r}: list by {' or '.join(method.verdicts)}")
