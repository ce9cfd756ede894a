"""Figures of a token's explanation: attention, hidden states, pooling, attribution and embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from stickytoken.explanation.files import StoredExplanation
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import Band, DataTable, ReportFigure
from stickytoken.reports.templating import number

Row = Mapping[str, Any]

# The titles of the measures in each figure, keyed by measure.
_ATTENTION = {"attention_received": "from all positions", "attention_from_others": "from all but the copies"}
_DRIFT = {
    "carrier_cosine_drift": "carrier's tokens: drift",
    "copies_cosine_distance": "copies: distance to benign",
}
_POOLING = {
    "pooling_share": "copies' share of the vector",
    "pooling_norm_share": "copies' share of the lengths",
    "pooling_toward_mean": "copies, along the mean",
    "vector_toward_mean": "whole vector, along the mean",
}
_EMBEDDING = {
    "embedding_norm": "length",
    "embedding_distance_to_mean": "distance to the mean",
    "embedding_cosine_to_mean": "cosine to the mean",
    "embedding_distance_to_unused": "distance to unused",
    "embedding_cosine_to_unused": "cosine to unused",
}
_BENIGN = ("benign_mean", "benign_low", "benign_high", "deviations")

_READ_ATTENTION = (
    "Green: the mean of matched benign tokens, and the interval in which one more such token would lie, "
    "over all layers at once. Filled marks lie outside the interval; the first filled mark is where the "
    "effect begins. Attention shows where layers read from, not how much of that reaches the vector."
)
_READ_HEADS = (
    "Orange heads attend more to these copies than to copies of matched benign tokens, blue heads less. A "
    "dot marks a head outside the benign interval, which holds for all heads at once."
)
_READ_DRIFT = (
    "First panel: how far the states of the carrier's own tokens move when copies are added. Second "
    "panel: how far the states of the copies lie from those of matched benign tokens. Layer 0 is the "
    "embedding layer. In a causal model, tokens before the copies cannot drift."
)
_READ_ATTRIBUTION = (
    "The cells sum to the similarity. Orange cells add to it, blue cells subtract from it. Compare row sums "
    "with row sums, and cells with cells: adjacent copies share their joint contribution."
)


def explanation_figures(explanation: StoredExplanation) -> list[ReportFigure]:
    """Return the six figures of an explanation. A figure without data says why there is none."""
    prefix = f"explain-{explanation.token.token_id}"
    token = explanation.token.token
    measures = explanation.tables["measures"]
    return [
        _plot_by_layer(
            f"{prefix}-attention",
            "Attention that the copies receive, by layer",
            _collect_rows_by_panel(measures, _ATTENTION),
            token,
            _READ_ATTENTION,
        ),
        _plot_by_head(f"{prefix}-heads", explanation.tables["heads"]),
        _plot_by_layer(
            f"{prefix}-drift",
            "Drift of the hidden states, by layer",
            _collect_rows_by_panel(measures, _DRIFT),
            token,
            _READ_DRIFT,
        ),
        _plot_pooling(f"{prefix}-pooling", measures, token, explanation.record.pooling or "unknown"),
        _plot_attribution(
            f"{prefix}-attribution", explanation.tables["attribution"], explanation.tables["pairs"]
        ),
        _plot_embedding(f"{prefix}-embedding", explanation),
    ]


def _collect_rows_by_panel(
    measures: pl.DataFrame, titles: Mapping[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each measure, one row per layer, keyed by the title of the measure.

    Measures without values are left out.
    """
    rows_by_panel = {}
    for measure, title in titles.items():
        rows = measures.filter(measure=measure).drop_nulls(["layer", "value"]).sort("layer").to_dicts()
        if rows:
            rows_by_panel[title] = rows
    return rows_by_panel


def _plot_by_layer(
    name: str, title: str, rows_by_panel: Mapping[str, Sequence[Row]], token: str, reading: str
) -> ReportFigure:
    """Plot measures against the layer, with the mean and the interval of the benign tokens."""
    columns = ("layer", "value", "low", "high", *_BENIGN, "outside")
    headings = ("measure", *(column.replace("_", " ") for column in columns))
    if not rows_by_panel:
        return fig.figure_of_nothing(name, title, reading, "this model does not expose it", headings)
    figure = fig.new_panels(list(rows_by_panel), height=380, spacing=0.1)
    for panel, rows in enumerate(rows_by_panel.values(), start=1):
        _draw_layers(figure, rows, token, panel)
    layer_count = len(next(iter(rows_by_panel.values())))
    figure.update_xaxes(title_text="layer", dtick=max(1, layer_count // 8), zeroline=False)
    figure.update_layout(legend={"y": -0.24, "yanchor": "top"}, hovermode="closest")
    sentences = []
    cells = []
    for panel_title, rows in rows_by_panel.items():
        sentences.append(_describe_layers(panel_title, rows, token))
        cells += [(panel_title, *_take_values(row, columns)) for row in rows]
    panel_count = len(rows_by_panel)
    narrow = fig.stack_panels(figure, panels=panel_count, height=360 * panel_count) if panel_count > 1 else {}
    return ReportFigure(name, title, figure, " ".join(sentences), reading, DataTable(headings, cells), narrow)


def _take_values(row: Row, columns: Sequence[str]) -> list[Any]:
    return [row[column] for column in columns]


def _describe_layers(panel_title: str, rows: Sequence[Row], token: str) -> str:
    start = f"{panel_title[:1].upper()}{panel_title[1:]}: {token}"
    outside = [row for row in rows if row["outside"]]
    if not outside:
        return f"{start} stays within the benign interval in all layers."
    furthest = _find_most_deviating(outside)
    return (
        f"{start} leaves the benign interval in layer {outside[0]['layer']} and is furthest from it in "
        f"layer {furthest['layer']}, at {furthest['value']:.3f} where benign tokens have "
        f"{furthest['benign_mean']:.3f}."
    )


def _find_most_deviating(rows: Sequence[Row]) -> Row:
    def deviate(row: Row) -> float:
        # The deviation is None if all benign tokens have the same value.
        return abs(float(row["deviations"] or 0.0))

    return max(rows, key=deviate)


def _draw_layers(figure: go.Figure, rows: Sequence[Row], token: str, panel: int) -> None:
    """Plot a measure against the layer, with a band for benign tokens and a line for the explained token."""
    layers = [row["layer"] for row in rows]
    benign = Band(
        [row["benign_low"] for row in rows],
        [row["benign_mean"] for row in rows],
        [row["benign_high"] for row in rows],
    )
    fig.draw_ordinary(
        figure,
        layers,
        benign,
        panel,
        name="benign tokens: mean and interval",
        legendgroup="benign",
        showlegend=panel == 1,
        hovertemplate="benign tokens<br>layer %{x}: %{y:.4f}<extra></extra>",
    )
    line: dict[str, Any] = {
        "type": "scatter",
        "x": layers,
        "y": [row["value"] for row in rows],
        "error_y": _make_error_bars(rows) | {"thickness": 1.2, "width": 3},
        "customdata": ["outside" if row["outside"] else "inside" for row in rows],
        "mode": "lines+markers",
        "line": {"color": fig.STICKY, "width": 2.5},
        "marker": {"size": 9, "symbol": _choose_symbols(rows)},
        "name": f"{fig.legend_label(token)} (filled: outside)",
        "legendgroup": "token",
        "showlegend": panel == 1,
        "hovertemplate": f"{fig.label(token)}<br>layer %{{x}}: %{{y:.4f}}, %{{customdata}}<extra></extra>",
    }
    figure.add_trace(line, row=1, col=panel)


def _make_error_bars(rows: Sequence[Row]) -> dict[str, Any]:
    # An explanation based on a single text has no intervals, and so no error bars.
    return fig.error_bars(
        [row["value"] for row in rows],
        [row["low"] for row in rows],
        [row["high"] for row in rows],
    )


def _choose_symbols(rows: Sequence[Row]) -> list[str]:
    return ["diamond" if row["outside"] else "circle-open" for row in rows]


# Columns of the attention-head table.
_HEAD_COLUMNS = (
    "value",
    "benign_mean",
    "deviations",
    "wasserstein",
    "wasserstein_benign",
    "kl",
    "kl_benign",
)
# Deviation from the benign tokens, in standard deviations, at which the colour is deepest. Without this
# limit, a single extreme head would make all other heads pale.
_DEEPEST_DEVIATION = 10.0


def _plot_by_head(name: str, heads: pl.DataFrame) -> ReportFigure:
    title = "Attention that the copies receive, by layer and head"
    headings = ("layer", "head", *(column.replace("_", " ") for column in _HEAD_COLUMNS))
    single_heads = heads.drop_nulls("head").sort("layer", "head")
    if single_heads.is_empty():
        message = "this model does not expose its attention"
        return fig.figure_of_nothing(name, title, _READ_HEADS, message, headings)
    return ReportFigure(
        name,
        title,
        _draw_heads(single_heads),
        _describe_heads(single_heads),
        _READ_HEADS,
        DataTable(headings, _make_head_rows(heads, single_heads)),
    )


def _describe_heads(single_heads: pl.DataFrame) -> str:
    outside = single_heads.filter("outside").to_dicts()
    text = (
        f"The copies' share of the attention is outside the benign interval in {len(outside)} of "
        f"{len(single_heads)} heads."
    )
    if outside:
        furthest = _find_most_deviating(outside)
        text += (
            f" It is furthest in layer {furthest['layer']}, head {furthest['head']}: "
            f"{furthest['value']:.3f} where benign tokens have {furthest['benign_mean']:.3f}."
        )
    return text


def _make_head_rows(heads: pl.DataFrame, single_heads: pl.DataFrame) -> list[tuple[Any, ...]]:
    layer_means = heads.filter(pl.col("head").is_null()).sort("layer")
    most_different = single_heads.sort("wasserstein", descending=True, nulls_last=True).head(5)
    rows = []
    for row in pl.concat([layer_means, most_different]).to_dicts():
        head = "mean" if row["head"] is None else row["head"]
        rows.append((row["layer"], head, *_take_values(row, _HEAD_COLUMNS)))
    return rows


def _draw_heads(single_heads: pl.DataFrame) -> go.Figure:
    """Draw a heat map of each head's deviation from the benign tokens. Missing heads have blank cells."""
    layers = single_heads["layer"].unique().sort().to_list()
    head_count = max(single_heads["head"].to_list()) + 1
    row_by_cell = {(row["layer"], row["head"]): row for row in single_heads.to_dicts()}
    deviations: list[list[Any]] = []
    details: list[list[Any]] = []
    dots: list[list[str]] = []
    for layer in layers:
        cells = [row_by_cell.get((layer, head)) for head in range(head_count)]
        deviations.append([None if cell is None else cell["deviations"] for cell in cells])
        details.append([_list_head_details(cell) for cell in cells])
        dots.append(["●" if cell is not None and cell["outside"] else "" for cell in cells])
    figure = fig.new_figure(height=170 + 26 * len(layers))
    heatmap: dict[str, Any] = {
        "type": "heatmap",
        "x": list(range(head_count)),
        "y": layers,
        "z": deviations,
        "customdata": details,
        "text": dots,
        "texttemplate": "%{text}",
        "textfont": {"size": 9, "color": "#1d2430"},  # dark in both themes, as the cells are light
        "hovertemplate": "layer %{y}, head %{x}: %{z:.1f} SD<br>share %{customdata[0]:.3f}, benign "
        "%{customdata[1]:.3f}<br>Wasserstein distance %{customdata[2]:.3f}<extra></extra>",
        **fig.make_diverging_scale(_DEEPEST_DEVIATION, "SD from benign"),
    }
    figure.add_trace(heatmap)
    # Every head and layer has a label if there is room.
    figure.update_xaxes(title_text="head", dtick=1 if head_count <= 16 else 4, showgrid=False)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if len(layers) <= 12 else 4)
    return figure


def _list_head_details(cell: Row | None) -> list[Any]:
    # Returns the values in the order in which the hover text of `_draw_heads` uses them.
    columns = ("value", "benign_mean", "wasserstein")
    return [None if cell is None else cell[column] for column in columns]


def _plot_pooling(name: str, measures: pl.DataFrame, token: str, pooling: str) -> ReportFigure:
    """Draw how much the copies contribute to the vector of a text, with the intervals of benign tokens."""
    title = "What the copies contribute to the sentence vector"
    reading = (
        f"Pooling of this model: {pooling}. With mean pooling every position contributes a share; with "
        "CLS or last-token pooling the copies contribute nothing, or everything, by construction. Green: the "
        "interval of the matched benign tokens."
    )
    rows = _collect_titled_rows(measures, _POOLING, ("value", "benign_low", "benign_high"))
    table = _make_measure_table(rows, ("value", "low", "high", *_BENIGN, "outside"))
    if not rows:
        return fig.figure_of_nothing(name, title, reading, "this model does not expose it", table.columns)
    clauses = []
    for row in rows:
        outside_or_within = "outside" if row["outside"] else "within"
        clauses.append(
            f"{row['measure']} {row['value']:.3f}, {outside_or_within} the benign interval of "
            f"{row['benign_low']:.3f} to {row['benign_high']:.3f}"
        )
    alt = f"{token}: {'; '.join(clauses)}."
    return ReportFigure(name, title, _draw_pooling(rows, token), alt, reading, table)


def _draw_pooling(rows: Sequence[Row], token: str) -> go.Figure:
    """Draw one row per measure, with a bar for the benign interval.

    Each row also has a mark for the benign mean, and a mark for the token.
    """
    figure = fig.new_figure(height=150 + 56 * len(rows))
    titles = [row["measure"] for row in rows]
    intervals: dict[str, Any] = {
        "type": "bar",
        "y": titles,
        "x": [row["benign_high"] - row["benign_low"] for row in rows],
        "base": [row["benign_low"] for row in rows],
        "orientation": "h",
        "width": 0.42,
        "marker": {"color": fig.CONTROL, "opacity": 0.35},
        "name": "benign interval",
        "customdata": [[row["benign_low"], row["benign_high"]] for row in rows],
        "hovertemplate": "%{y}<br>benign %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
    }
    figure.add_trace(intervals)
    figure.add_scatter(
        y=titles,
        x=[row["benign_mean"] for row in rows],
        mode="markers",
        marker={"symbol": "line-ns", "size": 18, "line": {"color": fig.CONTROL, "width": 2.5}},
        name="benign mean",
        hovertemplate="%{y}<br>benign mean %{x:.4f}<extra></extra>",
    )
    marks: dict[str, Any] = {
        "type": "scatter",
        "y": titles,
        "x": [row["value"] for row in rows],
        "error_x": _make_error_bars(rows),
        "mode": "markers",
        "marker": {"color": fig.STICKY, "size": 12, "symbol": _choose_symbols(rows)},
        "name": f"{fig.legend_label(token)} (filled: outside)",
        "hovertemplate": f"%{{y}}<br>{fig.label(token)}: %{{x:.4f}}<extra></extra>",
    }
    figure.add_trace(marks)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest", legend={"y": -0.16, "yanchor": "top"})
    return figure


def _collect_titled_rows(
    measures: pl.DataFrame, titles: Mapping[str, str], needed_columns: Sequence[str]
) -> list[dict[str, Any]]:
    # Returns the rows of the measures in ``titles``, with the title in place of the measure's name. Rows
    # without a value in one of ``needed_columns`` are left out.
    row_by_measure = {row["measure"]: row for row in measures.drop_nulls(needed_columns).to_dicts()}
    return [
        row_by_measure[measure] | {"measure": title}
        for measure, title in titles.items()
        if measure in row_by_measure
    ]


def _make_measure_table(rows: Sequence[Row], columns: Sequence[str]) -> DataTable:
    return DataTable.of({column: column.replace("_", " ") for column in ("measure", *columns)}, rows)


def _plot_embedding(name: str, explanation: StoredExplanation) -> ReportFigure:
    """Draw how the token's row of the embedding matrix ranks among the rows of the available tokens."""
    title = "The row of the embedding matrix"
    token = explanation.token.token
    reading = _explain_embedding(explanation.record.vocabulary)
    narrow = {"xaxis.title.text": "% of the available<br>tokens below"}
    rows = _collect_titled_rows(explanation.tables["measures"], _EMBEDDING, ("value", "share_below"))
    table = _make_measure_table(rows, ("value", "share_below", *_BENIGN, "outside"))
    if not rows:
        message = "this model does not expose its embedding matrix"
        return fig.figure_of_nothing(name, title, reading, message, table.columns, narrow=narrow)
    parts = "; ".join(
        f"{row['measure']} {row['value']:.3f}, above {row['share_below']:.1%} of the vocabulary"
        for row in rows
    )
    alt = f"{token}: {parts}."
    neighbours = explanation.tables["neighbours"].sort("rank").to_dicts()
    if neighbours:
        nearest = ", ".join(f"{row['neighbour']} ({row['cosine']:.2f})" for row in neighbours)
        alt += f" Nearest rows by cosine: {nearest}."
    return ReportFigure(name, title, _draw_embedding(rows, token), alt, reading, table, narrow)


def _explain_embedding(vocabulary: Mapping[str, Any]) -> str:
    reading = (
        "A row close to the rows of unused entries was hardly trained (Land and Bartolo 2024). A token with "
        "an unusual row need not be sticky, and a sticky token need not have an unusual row."
    )
    # Without the embedding matrix, these statistics are missing.
    if {"mean_cosine", "first_component_share"} <= set(vocabulary):
        mean_cosine = number(vocabulary["mean_cosine"], 3)
        reading += (
            f" Over the whole vocabulary, the mean cosine of two rows is {mean_cosine} "
            "(0: the rows point evenly in all directions), and the first principal component explains "
            f"{vocabulary['first_component_share']:.1%} of the variance."
        )
    return reading


def _draw_embedding(rows: Sequence[Row], token: str) -> go.Figure:
    """Draw one row per measure, with a mark at the percentage of tokens that have a smaller value."""
    figure = fig.new_figure(height=140 + 44 * len(rows))
    titles = [row["measure"] for row in rows]
    line_titles: list[str] = []
    line_ends: list[int | None] = []
    for title in titles:
        line_titles += [title, title, title]
        line_ends += [0, 100, None]  # None ends a line, so that it is not joined to the next line
    lines: dict[str, Any] = {
        "type": "scatter",
        "y": line_titles,
        "x": line_ends,
        "mode": "lines",
        "line": {"color": fig.ORDINARY, "width": 4},
        "opacity": 0.35,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    figure.add_trace(lines)
    marks: dict[str, Any] = {
        "type": "scatter",
        "y": titles,
        "x": [100 * row["share_below"] for row in rows],
        "customdata": [[row["value"], row["benign_mean"]] for row in rows],
        "mode": "markers",
        "marker": {"color": fig.STICKY, "size": 13, "symbol": _choose_symbols(rows)},
        "name": f"{fig.legend_label(token)}<br>(filled: outside the benign interval)",
        "showlegend": True,
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{customdata[0]:.4f}, benign %{customdata[1]:.4f}<br>%{x:.1f}% of the "
        "vocabulary is below<extra></extra>",
    }
    figure.add_trace(marks)
    figure.update_xaxes(title_text="% of the available tokens below", range=[-2, 102])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest")
    return figure


# Maximum number of token pairs in the table. The pairs with the largest absolute contributions are listed.
_LISTED_PAIRS = 10


def _plot_attribution(name: str, cells: pl.DataFrame, text_pairs: pl.DataFrame) -> ReportFigure:
    """Draw how much each pair of tokens adds to the similarity of the first pair of texts.

    A pair of texts is a carrier with copies, and an anchor.
    """
    title = "One pair's similarity, token by token"
    if text_pairs.is_empty():
        return fig.figure_of_nothing(name, title, _READ_ATTRIBUTION, "no similarity was attributed")
    first_text_pair = text_pairs.sort("pair").row(0, named=True)
    cells_of_pair = cells.filter(pair=first_text_pair["pair"])
    return ReportFigure(
        name,
        title,
        _draw_attribution(cells_of_pair),
        _describe_attribution(first_text_pair),
        _READ_ATTRIBUTION,
        DataTable(("carrier with copies", "part", "anchor", "adds"), _make_attribution_rows(cells_of_pair)),
    )


def _describe_attribution(text_pair: Row) -> str:
    return (
        f"The similarity of “{text_pair['carrier']}” and “{text_pair['anchor']}” is "
        f"{text_pair['similarity_before']:.3f} without copies and {text_pair['similarity']:.3f} with copies. "
        f"Of this, the copies contribute {text_pair['from_copies']:.3f}, and the tokens of the text itself "
        f"{text_pair['from_carrier']:.3f}."
    )


def _make_attribution_rows(cells: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the sum of each row of the matrix, and then its largest cells, as rows of the table.

    A row of the table has a token of the carrier, the part of the text that this token belongs to, a token of
    the anchor, and a value.
    """
    sums = (
        cells.group_by("row", maintain_order=True)
        .agg(pl.col("row_token", "row_part").first(), pl.lit("all").alias("anchor"), pl.col("value").sum())
        .sort("row")
    )
    largest = cells.sort(pl.col("value").abs(), "row", "column", descending=[True, False, False])
    rows = list(sums.select("row_token", "row_part", "anchor", "value").iter_rows())
    rows += largest.head(_LISTED_PAIRS).select("row_token", "row_part", "column_token", "value").iter_rows()
    return rows


def _make_hover_names(row_name: str, column_names: Sequence[str]) -> list[list[str]]:
    return [[row_name, column_name] for column_name in column_names]


def _draw_attribution(cells: pl.DataFrame) -> go.Figure:
    """Draw the matrix of contributions to a similarity, with the sum of each row as the last column."""
    ordered = cells.sort("row", "column")
    matrix_rows = cells.unique("row").sort("row")  # one cell of each row, which names the token of the row
    matrix_columns = cells.unique("column").sort("column")
    names = [fig.label(token) for token in matrix_rows["row_token"]]
    columns = [fig.label(token) for token in matrix_columns["column_token"]]
    values = ordered["value"].to_numpy().reshape(len(names), len(columns))  # (carrier, anchor tokens)
    strongest = float(np.abs(values).max()) or 1.0  # computed without the row sums, which may be larger
    values = np.hstack([values, values.sum(axis=1, keepdims=True)])
    columns.append("(sum of the row)")
    figure = fig.new_figure(height=220 + 22 * len(names))
    figure.add_heatmap(
        x=list(range(len(columns))),
        y=list(range(len(names))),
        z=values.round(6).tolist(),
        customdata=[_make_hover_names(name, columns) for name in names],
        hovertemplate="%{customdata[0]} and %{customdata[1]}: %{z:.4f}<extra></extra>",
        **fig.make_diverging_scale(strongest, "added to the similarity"),
    )
    figure.update_xaxes(
        title_text="anchor",
        tickvals=list(range(len(columns))),
        ticktext=columns,
        tickangle=-60,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title_text="carrier with copies",
        tickvals=list(range(len(names))),
        ticktext=names,
        autorange="reversed",
        showgrid=False,
        zeroline=False,
    )
    figure.add_vline(x=len(columns) - 1.5, line=fig.DOTTED_LINE)  # before the sums
    # Dotted lines separate the copies from the tokens of the carrier.
    is_copy = (matrix_rows["row_part"] == "copies").to_list()
    for row, (is_copy_above, is_copy_below) in enumerate(pairwise(is_copy)):
        if is_copy_above != is_copy_below:
            figure.add_hline(y=row + 0.5, line=fig.DOTTED_LINE)
    return figure
