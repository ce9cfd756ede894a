"""stickytoken show: look into a finished run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli.categories import known_category
from stickytoken.cli.errors import reported
from stickytoken.cli.options import Format, OutputFormat
from stickytoken.cli.output import print_json
from stickytoken.cli.results import print_rows, print_run
from stickytoken.errors import InputError

_LISTED = 50


class Verdict(StrEnum):
    """Verdicts of a run."""

    STICKY = "sticky"
    BENIGN = "benign"


class Order(StrEnum):
    """What the listed tokens are sorted by, largest first."""

    RATE = "validation_rate"
    SCORE = "sticky_score"
    LIFT = "lift"


@reported
def show(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    token: Annotated[
        str | None, typer.Option(help="Show one token, by vocabulary string or text.", show_default=False)
    ] = None,
    verdict: Annotated[
        Verdict | None, typer.Option(help="List tokens of this verdict.", show_default=False)
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="List tokens of this category.", show_default=False)
    ] = None,
    contains: Annotated[
        str | None, typer.Option(help="List tokens whose text contains this.", show_default=False)
    ] = None,
    validated: Annotated[bool, typer.Option("--validated", help="List only validated tokens.")] = False,
    sort: Annotated[
        Order | None, typer.Option(help="Sort the list by this, largest first.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Tokens to list. Default: 50.", show_default=False)
    ] = None,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Show the sticky tokens of a run, or list its tokens by filters.

    Example: stickytoken show runs/all-MiniLM-L6-v2-std-0123456789ab --validated --sort lift
    """
    import polars as pl

    from stickytoken.runs import open_run

    category = known_category(category)
    if contains == "":
        raise InputError("contains is '': there is nothing to look for; pass a part of a token's text")
    found = open_run(run)
    if not any((token is not None, verdict, category, contains, validated, sort, limit)):
        if output_format is Format.JSON:
            print_json(found.summary())
        else:
            print_run(found)
        return
    rows = found.token(token) if token is not None else found.tokens
    if verdict:
        rows = rows.filter(verdict=verdict.value)
    if category:
        rows = rows.filter(category=category)
    if contains:
        rows = rows.filter(pl.col("decoded").str.contains(contains, literal=True))
    if validated:
        rows = rows.filter(pl.col("verdict").is_not_null())
    if sort:
        rows = rows.sort(sort.value, "token_id", descending=[True, False], nulls_last=True)
    listed = rows.head(limit or _LISTED)
    if output_format is Format.JSON:
        print_json(found.summary() | {"tokens": listed.to_dicts()})
        return
    print_rows(f"{len(listed)} of {len(rows)} tokens", listed)
