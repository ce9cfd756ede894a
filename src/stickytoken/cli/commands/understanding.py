"""The commands explain and why: what copies of a token do in a model, and what makes texts similar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.settings.explain import ExplainSettings
from stickytoken.settings.reading import Columns
from stickytoken.validation import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stickytoken.explanation import Explanation
    from stickytoken.explanation.files import TokenExplanation


@command(settings=("prompt", "token_prepending", "truncate_dim", "layer"))
def explain(
    source: opt.Source,
    tokens: opt.TokenArguments,
    text: Annotated[list[str] | None, opt.texts_option("--text")] = None,
    *,
    sentences: opt.TextsOption[str | None] = None,
    columns: Columns,
    model: opt.RunsModel = None,
    settings: ExplainSettings,
    loading: opt.ModelOptions,
    out: opt.OutputOption[Path | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show what copies of a token do inside a model, compared with copies of matched benign tokens.

    Example: stickytoken explain all-MiniLM-L6-v2 '[CLS]' --text "A man repairs a bicycle"

    Args:
        text: Insert the copies into this text. Repeatable. Default: sentences of the corpus.
        sentences: Corpus, as for detect. Default: the corpus of the run, or the bundled corpus.
        out: Folder for the tables. Default for a run: the folder `explain` in the run folder. Without a run,
            no tables are written by default.
    """
    from stickytoken.explanation.files import EXPLANATIONS_FOLDER

    corpus = None
    if sentences is not None or columns != Columns():
        corpus = stickytoken.load_sentences(sentences, columns)
    run, encoder = opt.open_source(source, loading, model)
    # Without a run or --out, the explanation is printed but not stored.
    folder = out
    if folder is None and run is not None:
        folder = run.path / EXPLANATIONS_FOLDER
    with console.progress_bar() as progress:
        explanation = stickytoken.explain(
            encoder,
            opt.parse_tokens(tokens),
            run=run,
            texts=text,
            sentences=corpus,
            settings=settings,
            out=folder,
            progress=progress,
        )
    if folder is not None:
        console.inform(f"tables: {folder}/<token id>/")
    if run is not None:
        option = "" if out is None else f" --explanations {quote(str(out))}"
        console.inform(f"for figures: stickytoken report {quote(str(run.path))}{option}")
    if output_format is opt.Format.JSON:
        console.print_json(explanation.document())
    else:
        _print_explanation(explanation, settings)


def _print_explanation(explanation: Explanation, settings: ExplainSettings) -> None:
    for token in explanation.tokens:
        console.print_line(token.verdict)
    for token in explanation.tokens:
        _print_token(explanation, token)
    copies = f"{settings.copies} copies ({settings.placement})"
    console.print_line(
        f"{copies} in {explanation.carriers} texts of {explanation.source}; "
        f"pooling: {explanation.pooling or 'unknown'}. low, high: {settings.confidence:.0%} interval of the "
        "mean over texts; benign low, high: interval for one more benign token, over all layers together."
    )
    console.inform_notes(explanation.notes)


# The measures in the printed table. The files and the JSON document contain all measures.
_PRINTED_MEASURES = (
    "lift_sentences",
    "attention_received",
    "carrier_cosine_drift",
    "copies_cosine_distance",
    "pooling_share",
    "pooling_toward_mean",
    "attributed_to_copies",
    "embedding_norm",
    "embedding_cosine_to_mean",
    "embedding_cosine_to_unused",
)
_MEASURE_COLUMNS = ("layer", "value", "low", "high", "benign_low", "benign_high", "deviations")
_HEAD_COLUMNS = (
    "layer",
    "head",
    "value",
    "benign_mean",
    "deviations",
    "wasserstein",
    "wasserstein_benign",
    "kl",
)
_PAIR_COLUMNS = (
    "similarity_before",
    "similarity",
    "from_copies",
    "from_carrier",
)


def _print_token(explanation: Explanation, token: TokenExplanation) -> None:
    """Print the tables of a token: measures, attention heads, pairs of texts, and nearest embeddings."""
    from stickytoken.explanation.statistics import furthest

    tables = explanation.of_token(token.token_id)
    # For each measure, the row of the layer at which the token differs most from benign tokens.
    row_by_measure = {row["measure"]: row for row in furthest(tables["measures"])}
    measures = []
    for name in _PRINTED_MEASURES:
        if name in row_by_measure:  # some measures need what not every model has
            row = row_by_measure[name]
            outside = {True: "yes", False: "no", None: None}[row["outside"]]
            values = [row[column] for column in _MEASURE_COLUMNS]
            measures.append([name.replace("_", " "), *values, outside])
    title = (
        f"{token.token!r} ({token.token_id}) compared with {len(tables['benign'])} benign tokens, "
        "at the layer where it differs most"
    )
    _print_with_spaces(title, ("measure", *_MEASURE_COLUMNS, "outside"), measures)
    heads_and_layers = tables["heads"]  # a row without a head is about all heads of a layer
    heads = heads_and_layers.drop_nulls("head").sort("wasserstein", descending=True).head(5)
    if not heads.is_empty():
        title = "Attention that the copies receive, in the heads where it differs most from benign tokens"
        _print_with_spaces(title, _HEAD_COLUMNS, heads.select(_HEAD_COLUMNS).iter_rows())
    for pair in tables["pairs"].to_dicts():
        title = f"Similarity as a sum over tokens, of {pair['carrier']!r} and {pair['anchor']!r}"
        _print_with_spaces(title, _PAIR_COLUMNS, [[pair[column] for column in _PAIR_COLUMNS]])
    if not tables["neighbours"].is_empty():
        neighbours = tables["neighbours"].select("neighbour", "cosine").rows()
        near = ", ".join(f"{name!r} {cosine:.2f}" for name, cosine in neighbours)
        console.print_line(f"nearest embeddings: {near}")


def _print_with_spaces(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    console.print_table(title, [column.replace("_", " ") for column in columns], rows)


@command()
def why(
    model: opt.Model,
    first: Annotated[str, typer.Argument(metavar="TEXT")],
    second: Annotated[str, typer.Argument(metavar="TEXT")],
    *,
    run: opt.TextsOption[Path | None] = None,
    words: Annotated[bool, opt.texts_option("--words")] = False,
    loading: opt.ModelOptions,
    top: opt.ListLimit[int] = 10,
    html: opt.OutputOption[Path | None] = None,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show which pairs of tokens make two texts similar, and what deleting each token changes.

    Example: stickytoken why all-MiniLM-L6-v2 "A girl brushes her hair" "A woman combs her hair"

    Args:
        first: One text.
        second: The other text.
        run: Folder of a finished run of this model. The sticky tokens of the run are marked in both texts.
        words: Divide the texts into words instead of tokens.
        top: Number of pairs to print.
        html: Also write a self-contained page to this file.
    """
    from stickytoken.attribution import summary

    write_page = None
    if html is not None:
        from stickytoken.measurement.store import require_file_place
        from stickytoken.reports.page import write_similarity_page  # raises an error without its extra

        require_file_place(html)
        write_page = partial(write_similarity_page, path=html, top=top)
    opt.require_found(model, loading)
    opened = None if run is None else stickytoken.open_run(run)
    record = None if opened is None else opened.record
    # With a run, the model is loaded with the settings of the run, but from where the user says it is.
    encoder = opt.load_later(model, loading, record, moved_to=model, for_documents=run is not None)
    with console.late_progress(seconds=3) as progress:
        attribution = stickytoken.why(encoder, first, second, run=opened, words=words, progress=progress)
    if write_page is not None:
        write_page(attribution)
        console.inform(f"page: {html}")
    if output_format is opt.Format.JSON:
        console.print_json(attribution.document(top))
        return
    for line in summary(attribution, top):
        console.print_line(line)
    grouped = attribution.grouped()  # neighbouring copies of a sticky token count as one part
    pairs = [
        (pair.first_text, pair.second_text, pair.value, "yes" if pair.sticky else "")
        for pair in grouped.strongest(top)
    ]
    columns = ("first text", "second text", "contribution", "sticky")
    console.print_table("Pairs that raise the cosine most", columns, pairs, digits=(None, None, 3, None))
    _print_matrix(grouped)
    _print_deletions("first", grouped.first.parts)
    _print_deletions("second", grouped.second.parts)


# Maximum number of deletions to list. Those that change the cosine most are listed.
_MAX_DELETIONS = 5


def _print_deletions(name: str, text_parts: Iterable[Any]) -> None:
    changes = [(part.text, part.deletion) for part in text_parts if part.deletion is not None]
    largest = sorted(changes, key=lambda change: -abs(change[1]))[:_MAX_DELETIONS]
    title = f"Largest changes in the cosine when a part of the {name} text is deleted"
    console.print_table(title, ("part", "change"), largest, digits=(None, 3))


# Size of the printed matrix: width of labels and cells in characters, and maximum number of rows.
_LABEL_WIDTH = 14
_CELL_WIDTH = 7
_MAX_ROWS = 30


def _print_matrix(attribution: stickytoken.Why) -> None:
    """Print the matrix of contributions. If it is too large, print only its strongest rows and columns."""
    matrix = attribution.matrix  # shape (parts of the first text, parts of the second)
    strength = abs(matrix)
    width_for_cells = console.stdout().width - _LABEL_WIDTH - 2
    max_columns = max(1, width_for_cells // (_CELL_WIDTH + 1))  # a space follows each cell
    rows = _find_indices_of_largest(strength.max(axis=1), _MAX_ROWS)
    columns = _find_indices_of_largest(strength.max(axis=0), max_columns)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", max_width=_LABEL_WIDTH, no_wrap=True, overflow="ellipsis")
    for column in columns:
        heading = Text(visible(attribution.second.parts[column].text))
        table.add_column(heading, width=_CELL_WIDTH, no_wrap=True, overflow="ellipsis", justify="right")
    highest = float(strength.max()) or 1.0  # not 0, because the colours divide by it
    for row in rows:
        label = Text(visible(attribution.first.parts[row].text))
        cells = [_color(float(value), highest) for value in matrix[row, columns]]
        table.add_row(label, *cells)
    note = ""
    if matrix.shape != (len(rows), len(columns)):
        note = (
            f" (the strongest {len(rows)} of {matrix.shape[0]} rows, "
            f"{len(columns)} of {matrix.shape[1]} columns)"
        )
    console.print_line(f"Contributions: first text in rows, second in columns{note}")
    console.stdout().print(table)
    console.print_line("")


def _find_indices_of_largest(values: NDArray[np.floating], count: int) -> list[int]:
    order = (-values).argsort(kind="stable")[:count]
    return sorted(order.tolist())


def _color(value: float, highest: float) -> Text:
    # Red for positive and blue for negative values. The other channels go from 255, for white, down to 80.
    other_channels = round(255 - 175 * min(1.0, abs(value) / highest))
    colour = f"rgb(255,{other_channels},{other_channels})"
    if value < 0:
        colour = f"rgb({other_channels},{other_channels},255)"
    return Text(f"{value:+.3f}", style=f"black on {colour}")
