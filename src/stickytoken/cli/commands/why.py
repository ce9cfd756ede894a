"""stickytoken why: which pairs of tokens make two texts similar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from stickytoken.attribution.result import AttributionMethod
from stickytoken.cli._loading import command, load_for, require_found
from stickytoken.cli.options.model import LoadingOptions, Model, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option, texts_option
from stickytoken.cli.output.console import (
    inform,
    print_json,
    print_line,
    print_renderable,
    print_table,
    width,
)
from stickytoken.cli.output.progress import late_progress
from stickytoken.errors import InputError
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.attribution.result import Part, Why

_UNSEEN_SECONDS = 3.0

_LABEL = 14
_CELL = 7
_MOST_ROWS = 30
_CHANGES = 5


@command
def why(
    model: Model,
    first: Annotated[str, typer.Argument(metavar="TEXT", help="One text.")],
    second: Annotated[str, typer.Argument(metavar="TEXT", help="The other text.")],
    *,
    run: Annotated[
        Path | None, texts_option(help="Finished run of this model, whose sticky tokens are marked.")
    ] = None,
    method: Annotated[
        AttributionMethod,
        texts_option("--attribute-by", help="How the cosine is divided among pairs of tokens."),
    ] = AttributionMethod.DELETION,
    words: Annotated[bool, texts_option("--words", help="Attribute to words in place of tokens.")] = False,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    top: Annotated[int, output_option(min=1, help="Pairs to print.")] = 10,
    html: Annotated[Path | None, output_option(help="Write a self-contained page to this file.")] = None,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Show which pairs of tokens make two texts similar, and what deleting each token changes.

    Example: stickytoken why all-MiniLM-L6-v2 "A girl brushes her hair" "A woman combs her hair"
    """
    from stickytoken.attribution.why import why as run_why
    from stickytoken.detection import open_run

    for name, text in (("first", first), ("second", second)):
        if not text.strip():
            raise InputError(f"the {name} text is {text!r}: pass a text with words")
    if html is not None:
        from stickytoken.reports.page import require_place

        require_place(html)
    require_found(model, None, loading)
    opened = None if run is None else open_run(run)
    encoder = load_for(model, None if opened is None else opened.record, loading, prompting, model)
    with late_progress(_UNSEEN_SECONDS) as progress:
        found = run_why(encoder, first, second, method=method, run=opened, words=words, progress=progress)
    if html is not None:
        from stickytoken.reports.page import write_similarity_page

        write_similarity_page(found, html, top)
        inform(f"page: {html}")
    if output_format is Format.JSON:
        print_json(found.document(top))
    else:
        _print_why(found, top)


def _print_why(found: Why, top: int) -> None:
    """Print the findings in words, the strongest pairs, the matrix, and what deletions change."""
    from stickytoken.attribution.result import sentences

    for line in sentences(found, top):
        print_line(line)
    pairs = found.strongest(top)
    print_table(
        "Pairs that raise the cosine most",
        ("first text", "second text", "contribution", "sticky"),
        [(pair.first_text, pair.second_text, pair.value, "yes" if pair.sticky else "") for pair in pairs],
        (None, None, 3, None),
    )
    _print_matrix(found)
    for name, text in (("first", found.first), ("second", found.second)):
        known = [part for part in text.parts if part.deletion is not None]
        print_table(
            f"What the cosine changes by without a part of the {name} text: the largest changes",
            ("part", "change"),
            [(part.text, part.deletion) for part in sorted(known, key=_change)[:_CHANGES]],
            (None, 3),
        )
    rest = (
        "" if found.method == AttributionMethod.DELETION else f"; no part of either text: {_rest(found):+.3f}"
    )
    inform(f"method {found.method}; error of the sum {found.completeness_error:+.4f}{rest}")


def _change(part: Part) -> float:
    return -abs(part.deletion or 0.0)


def _rest(found: Why) -> float:
    return float(found.first_reference.sum() + found.second_reference.sum()) + found.reference


def _print_matrix(found: Why) -> None:
    """Print the matrix in colours; where it does not fit, its strongest rows and columns in reading order."""
    most = max(1, (width() - _LABEL - 2) // (_CELL + 1))
    rows = _strongest(found.matrix, 1, _MOST_ROWS)
    columns = _strongest(found.matrix, 0, most)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", max_width=_LABEL, no_wrap=True, overflow="ellipsis")
    for column in columns:
        name = Text(visible(found.second.parts[column].text))
        table.add_column(name, width=_CELL, no_wrap=True, overflow="ellipsis", justify="right")
    highest = float(np.abs(found.matrix).max()) or 1.0
    for row in rows:
        cells = [_shaded(float(found.matrix[row, column]), highest) for column in columns]
        table.add_row(Text(visible(found.first.parts[row].text)), *cells)
    shown = f"{len(rows)} of {found.matrix.shape[0]} rows, {len(columns)} of {found.matrix.shape[1]} columns"
    left_out = "" if found.matrix.shape == (len(rows), len(columns)) else f" (the strongest {shown})"
    print_line(f"Contributions: first text in rows, second in columns{left_out}")
    print_renderable(table)
    print_line("")


def _strongest(matrix: NDArray[np.float32], axis: int, most: int) -> Sequence[int]:
    order = np.argsort(-np.abs(matrix).max(axis=axis), kind="stable")[:most]
    kept: list[int] = np.sort(order).tolist()
    return kept


def _shaded(value: float, highest: float) -> Text:
    """Shade a cell: red raises the cosine, blue lowers it."""
    depth = min(1.0, abs(value) / highest)
    faint = round(255 - 175 * depth)
    colour = f"rgb(255,{faint},{faint})" if value >= 0 else f"rgb({faint},{faint},255)"
    return Text(f"{value:+.3f}", style=f"black on {colour}")
