"""stickytoken show: the tokens of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option, texts_option
from stickytoken.cli.options.texts import InCategory
from stickytoken.cli.output.console import print_json, print_line
from stickytoken.cli.output.run import print_dimensions, print_rows, show_run
from stickytoken.errors import InputError

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.detection import Run

_LISTED = 50


@command
def show(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    token: Annotated[str | None, texts_option(help="Show one token, by vocabulary string or text.")] = None,
    verdict: Annotated[
        str | None, texts_option(help="List tokens with this verdict, such as sticky or benign.")
    ] = None,
    category: InCategory = None,
    contains: Annotated[str | None, texts_option(help="List tokens whose text contains this.")] = None,
    validated: Annotated[
        bool,
        texts_option(
            "--validated", help="List only tokens with a verdict; some methods judge only candidates."
        ),
    ] = False,
    dimension: Annotated[
        int | None,
        texts_option(
            "--at-dimension",
            min=1,
            help="List tokens by so many first components of the vectors, where the run has them.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        texts_option(
            "--at-layer",
            min=1,
            help="List tokens by the vectors after so many layers, where the run has them.",
        ),
    ] = None,
    dimensions: Annotated[
        bool, output_option("--by-dimension", help="Show the table by dimension and layer only.")
    ] = False,
    sort: Annotated[
        str | None,
        output_option(help="Column to sort by, largest first. Default: the one that the method ranks by."),
    ] = None,
    limit: Annotated[
        int | None, output_option(min=1, help="Maximum number of tokens to list. Default: 50.")
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    *,
    verbosity: VerbosityOptions,
) -> None:
    """Show what a run found, or list its tokens with filters, highest lift first.

    Example: stickytoken show runs/all-MiniLM-L6-v2-profile-0123456789ab --verdict topical --limit 20
    """
    import polars as pl

    from stickytoken.detection import open_run

    if contains == "":
        raise InputError("--contains is '': pass a part of a token's text, or leave it out")
    found = open_run(run)
    if dimensions:
        _show_dimensions(found, output_format)
        return
    if not any((token is not None, verdict, category, contains, validated, sort, limit, dimension, layer)):
        show_run(found, output_format)
        return
    _require_of(found, verdict, validated, sort)
    rows = _rows_at(found, dimension, layer)
    if token is not None:
        rows = rows.filter(pl.col("token_id").is_in(found.token(token)["token_id"].to_list()))
    if verdict:
        rows = rows.filter(verdict=verdict)
    if category:
        rows = rows.filter(category=category)
    if contains:
        rows = rows.filter(pl.col("decoded").str.contains(contains, literal=True))
    if validated:
        rows = rows.filter(pl.col("verdict").is_not_null())
    order = sort or found.method.ranked_by.key
    rows = rows.sort(order, "token_id", descending=[True, False], nulls_last=True)
    listed = rows.head(limit or _LISTED)
    if output_format is Format.JSON:
        print_json(found.summary() | {"tokens": listed.to_dicts()})
        return
    if rows.is_empty():
        print_line("no tokens match")
    else:
        print_rows(f"{len(listed)} of {len(rows)} tokens", found, listed)


def _show_dimensions(run: Run, output_format: Format) -> None:
    """Print the table by dimension and layer."""
    table = run.by_dimension()
    if table.is_empty():
        raise InputError(
            f"the run in {run.path} was made without dimensions and layers: detect with --dimensions"
        )
    if output_format is Format.JSON:
        print_json({"run": str(run.path), "dimensions": table.to_dicts()})
    else:
        print_dimensions(run.record.model.name, table)


def _rows_at(run: Run, dimension: int | None, layer: int | None) -> pl.DataFrame:
    """Return the tokens by a dimension and layer; the model as it is without either."""
    if dimension is None and layer is None:
        return run.tokens
    if dimension is None:
        known = [record.dimension for record in run.dimensions if record.layer == layer]
        if len(known) > 1:
            raise InputError(
                f"--at-layer {layer} has the dimensions {', '.join(map(str, known))}: pass --at-dimension too"
            )
        dimension = known[0] if known else run.record.identity_parts["encoder"]["dimension"]
    return run.at(dimension, layer)


def _require_of(run: Run, verdict: str | None, validated: bool, sort: str | None) -> None:
    """Refuse a filter or an order that the method of a run does not have."""
    method, whose = run.method, f"the run in {run.path} used the method {run.record.method}"
    columns = dict.fromkeys([*(column.key for column in method.listed), *run.tokens.columns])
    sortable = [name for name in columns if name != "token_id" and run.tokens[name].dtype.is_numeric()]
    if sort is not None and sort not in sortable:
        raise InputError(f"{whose}, which cannot be sorted by {sort!r}: sort by {', '.join(sortable)}")
    if validated and method.judges_every_token:
        raise InputError(f"{whose}, which judges every token: leave --validated out, or list by --verdict")
    if verdict is not None and verdict not in method.verdicts:
        raise InputError(f"{whose}, which has no verdict {verdict!r}: list by {' or '.join(method.verdicts)}")
