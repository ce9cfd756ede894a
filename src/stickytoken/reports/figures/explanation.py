"""The similarity of a pair as a matrix over pairs of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from stickytoken.reports.figures.figure import (
    CONTROL,
    ORDINARY,
    STICKY,
    DataTable,
    diverging,
    draw_band,
    empty_figure,
    label,
    legend_label,
    new_figure,
)

SUM = "(sum of the row)"
_ROW_HEIGHT = 22
_NAMED = 10


def draw_attribution_matrix(cells: pl.DataFrame) -> go.Figure:
    """Draw one cell per pair of tokens, the row and column of the reference, and the sums of rows."""
    if cells.is_empty():
        return empty_figure("no similarity was attributed")
    rows, columns = _axis(cells, "row"), _axis(cells, "column")
    ordered = cells.sort("row", "column")
    values = ordered["value"].to_numpy().reshape(len(rows), len(columns))
    # The cell of both references is near 1 and tells nothing: colours are those of the tokens.
    strongest = float(np.abs(values[:-1, :-1]).max(initial=0)) or 1.0
    values = np.hstack([values, values.sum(axis=1, keepdims=True)])
    columns.append(SUM)
    figure = new_figure(height=220 + _ROW_HEIGHT * len(rows))
    figure.add_heatmap(
        x=list(range(len(columns))),
        y=list(range(len(rows))),
        z=values.round(6).tolist(),
        customdata=[[[left, right] for right in columns] for left in rows],
        hovertemplate="%{customdata[0]} and %{customdata[1]}: %{z:.4f}<extra></extra>",
        **diverging(strongest, "added to the similarity"),
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
        tickvals=list(range(len(rows))),
        ticktext=rows,
        autorange="reversed",
        showgrid=False,
        zeroline=False,
    )
    figure.add_vline(x=len(columns) - 1.5, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
    for place in _ends_of_copies(ordered):
        figure.add_hline(y=place, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
    return figure


def describe_attribution_matrix(cells: pl.DataFrame, pair: dict[str, Any] | None) -> str:
    """Describe what the copies, the carrier and the reference contribute."""
    if pair is None or cells.is_empty():
        return "No similarity was attributed."
    between = cells.filter(pl.col("row") < pl.col("row").max(), pl.col("column") < pl.col("column").max())
    sums = {
        part: float(between.filter(pl.col("row_part") == part)["value"].sum())
        for part in ("copies", "carrier")
    }
    return (
        f"The similarity of “{pair['carrier']}” and “{pair['anchor']}” is {pair['similarity_before']:.3f} "
        f"without copies and {pair['similarity']:.3f} with them. Of that, the rows of the copies "
        f"contribute {pair['from_copies']:.3f}, those of the carrier {pair['from_carrier']:.3f} and that "
        f"of the reference {pair['from_reference']:.3f}; the sum is off by "
        f"{abs(pair['completeness_error']):.2g}. Without the reference, copies contribute "
        f"{sums['copies']:.3f} and the carrier {sums['carrier']:.3f}."
    )


def table_attribution_matrix(cells: pl.DataFrame) -> DataTable:
    """Return the sum of every row, and the pairs of tokens that add or subtract most."""
    if cells.is_empty():
        return DataTable((), ())
    by_row = (
        cells.group_by("row", maintain_order=True)
        .agg(pl.col("row_token").first(), pl.col("row_part").first(), pl.col("value").sum())
        .sort("row")
    )
    between = cells.filter(pl.col("row") < pl.col("row").max(), pl.col("column") < pl.col("column").max())
    largest = between.sort(pl.col("value").abs(), "row", "column", descending=[True, False, False])
    return DataTable(
        ("carrier with copies", "part", "anchor", "adds"),
        [
            *((row["row_token"], row["row_part"], "all", row["value"]) for row in by_row.to_dicts()),
            *(
                (row["row_token"], row["row_part"], row["column_token"], row["value"])
                for row in largest.head(_NAMED).to_dicts()
            ),
        ],
    )


def _axis(cells: pl.DataFrame, side: str) -> list[str]:
    found = cells.select(side, f"{side}_token").unique(side).sort(side)
    return [label(token) for token in found[f"{side}_token"]]


def _ends_of_copies(cells: pl.DataFrame) -> list[float]:
    """Return the places between rows where copies begin or end."""
    parts = cells.unique("row").sort("row")["row_part"].to_list()
    return [
        place - 0.5
        for place in range(1, len(parts))
        if (parts[place - 1] == "copies") != (parts[place] == "copies")
    ]


# Beyond so many standard deviations of the benign tokens colours do not go further.
_STRONGEST = 10.0
_HEAD_MAP_NAMED = 5
_HEAD_MAP_ROW_HEIGHT = 26


def draw_head_map(heads: pl.DataFrame) -> go.Figure:
    """Draw one cell per layer and head: how far the token's share of attention is from the benign ones."""
    single = _single_heads(heads)
    if single.is_empty():
        return empty_figure("this model does not expose its attention")
    layers, width = single["layer"].unique().sort().to_list(), int(single["head"].max()) + 1  # type: ignore[arg-type]
    rows = {(row["layer"], row["head"]): row for row in single.to_dicts()}
    cells = [[rows.get((layer, head)) for head in range(width)] for layer in layers]
    figure = new_figure(height=170 + _HEAD_MAP_ROW_HEIGHT * len(layers))
    figure.add_heatmap(
        x=list(range(width)),
        y=layers,
        z=[[cell and cell["deviations"] for cell in row] for row in cells],
        customdata=[
            [
                [cell["value"], cell["benign_mean"], cell["wasserstein"]] if cell else [None] * 3
                for cell in row
            ]
            for row in cells
        ],
        text=[["●" if cell and cell["outside"] else "" for cell in row] for row in cells],
        texttemplate="%{text}",
        textfont={"size": 9, "color": "#1d2430"},
        hovertemplate="layer %{y}, head %{x}: %{z:.1f} SD<br>share %{customdata[0]:.3f}, benign "
        "%{customdata[1]:.3f}<br>Wasserstein distance %{customdata[2]:.3f}<extra></extra>",
        **diverging(_STRONGEST, "SD from benign"),
    )
    figure.update_xaxes(title_text="head", dtick=1 if width <= 16 else 4, showgrid=False)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if len(layers) <= 12 else 4)
    return figure


def describe_head_map(heads: pl.DataFrame) -> str:
    """Describe how many heads lie outside, and the furthest of them."""
    single = _single_heads(heads)
    if single.is_empty():
        return "This model does not expose its attention."
    outside = single.filter("outside")
    text = (
        f"The copies' share of the attention is outside the benign interval in {len(outside)} of "
        f"{len(single)} heads."
    )
    if len(outside):
        far = max(outside.to_dicts(), key=lambda row: abs(row["deviations"] or 0.0))
        text += (
            f" It is furthest in layer {far['layer']}, head {far['head']}: {far['value']:.3f} where benign "
            f"tokens have {far['benign_mean']:.3f}."
        )
    return text


def table_head_map(heads: pl.DataFrame) -> DataTable:
    """Return the mean over each layer's heads, and the heads that differ most from the benign ones."""
    single = _single_heads(heads).sort("wasserstein", descending=True, nulls_last=True)
    shown = pl.concat([heads.filter(pl.col("head").is_null()).sort("layer"), single.head(_HEAD_MAP_NAMED)])
    columns = (
        "layer",
        "value",
        "benign_mean",
        "deviations",
        "wasserstein",
        "wasserstein_benign",
        "kl",
        "kl_benign",
    )
    return DataTable(
        ("layer", "head", *(column.replace("_", " ") for column in columns[1:])),
        [
            (
                row["layer"],
                "mean" if row["head"] is None else row["head"],
                *(row[name] for name in columns[1:]),
            )
            for row in shown.to_dicts()
        ],
    )


def _single_heads(heads: pl.DataFrame) -> pl.DataFrame:
    return heads.drop_nulls("head").sort("layer", "head")


_COLUMNS = ("layer", "value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")


def draw_layer_curves(measures: pl.DataFrame, panels: Mapping[str, str], token: str) -> go.Figure:
    """Draw one panel per measure: the token with its interval, and the benign interval."""
    found = _rows_by_measure(measures, panels)
    if not found:
        return empty_figure("this model does not expose it")
    figure = make_subplots(
        rows=1,
        cols=len(found),
        horizontal_spacing=0.1,
        subplot_titles=[panels[name] for name in found],
        figure=new_figure(),
    )
    for column, rows in enumerate(found.values(), start=1):
        _draw_benign(figure, rows, column)
        _draw_token(figure, rows, column, token)
    figure.update_xaxes(
        title_text="layer", dtick=max(1, len(next(iter(found.values()))) // 8), zeroline=False
    )
    figure.update_layout(legend={"y": -0.24, "yanchor": "top"}, hovermode="closest")
    return figure


def describe_layer_curves(measures: pl.DataFrame, panels: Mapping[str, str], token: str) -> str:
    """Describe where each measure leaves the benign interval, and where it is furthest from it."""
    found = _rows_by_measure(measures, panels)
    if not found:
        return "This model does not expose it."
    return " ".join(
        _said(rows, f"{panels[name][:1].upper()}{panels[name][1:]}", token) for name, rows in found.items()
    )


def table_layer_curves(measures: pl.DataFrame, panels: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure and layer."""
    columns = ("measure", *(column.replace("_", " ") for column in _COLUMNS), "outside")
    return DataTable(
        columns,
        [
            (panels[name], *(row[column] for column in _COLUMNS), row["outside"])
            for name, rows in _rows_by_measure(measures, panels).items()
            for row in rows
        ],
    )


def _rows_by_measure(measures: pl.DataFrame, panels: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    found = {
        name: measures.filter(pl.col("measure") == name).drop_nulls(["layer", "value"]).sort("layer")
        for name in panels
    }
    return {name: rows.to_dicts() for name, rows in found.items() if len(rows)}


def _draw_benign(figure: go.Figure, rows: list[dict[str, Any]], column: int) -> None:
    layers = [row["layer"] for row in rows]
    lows, highs = [row["benign_low"] for row in rows], [row["benign_high"] for row in rows]
    draw_band(figure, layers, lows, highs, column)
    figure.add_scatter(
        x=layers,
        y=[row["benign_mean"] for row in rows],
        mode="lines",
        line={"color": CONTROL, "width": 2.5, "dash": "dash"},
        name="benign tokens: mean and interval",
        legendgroup="benign",
        showlegend=column == 1,
        hovertemplate="benign tokens<br>layer %{x}: %{y:.4f}<extra></extra>",
        row=1,
        col=column,
    )


def _draw_token(figure: go.Figure, rows: list[dict[str, Any]], column: int, token: str) -> None:
    known = all(row["low"] is not None for row in rows)
    figure.add_scatter(
        x=[row["layer"] for row in rows],
        y=[row["value"] for row in rows],
        error_y={
            "type": "data",
            "array": [row["high"] - row["value"] for row in rows],
            "thickness": 1.2,
            "width": 3,
        }
        if known
        else None,
        customdata=["outside" if row["outside"] else "inside" for row in rows],
        mode="lines+markers",
        line={"color": STICKY, "width": 2.5},
        marker={
            "size": 9,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)} (filled: outside)",
        legendgroup="token",
        showlegend=column == 1,
        hovertemplate=f"{label(token)}<br>layer %{{x}}: %{{y:.4f}}, %{{customdata}}<extra></extra>",
        row=1,
        col=column,
    )


def _said(rows: list[dict[str, Any]], title: str, token: str) -> str:
    outside = [row["layer"] for row in rows if row["outside"]]
    if not outside:
        return f"{title}: {token} stays within the benign interval in all layers."
    far = max((row for row in rows if row["outside"]), key=lambda row: abs(row["deviations"] or 0.0))
    return (
        f"{title}: {token} leaves the benign interval in layer {outside[0]} and is furthest from it in layer "
        f"{far['layer']}, at {far['value']:.3f} where benign tokens have {far['benign_mean']:.3f}."
    )


def shown_measures(
    measures: pl.DataFrame, names: Mapping[str, str], needed: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per measure, in the order of the names."""
    by_name = {row["measure"]: row for row in measures.drop_nulls(needed).to_dicts()}
    return [by_name[name] for name in names if name in by_name]


def measures_table(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], columns: Sequence[str]
) -> DataTable:
    """Return the numbers of the rows, with the titles of the measures in front."""
    return DataTable(
        ("measure", *(column.replace("_", " ") for column in columns)),
        [(names[row["measure"]], *(row[column] for column in columns)) for row in rows],
    )


_NEEDED = ("value", "benign_low", "benign_high")
_INTERVAL_ROWS_COLUMNS = (
    "value",
    "low",
    "high",
    "benign_mean",
    "benign_low",
    "benign_high",
    "deviations",
    "outside",
)


def interval_rows(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> go.Figure:
    """Draw the token's value over the benign interval, one line per measure."""
    rows = shown_measures(measures, names, _NEEDED)
    if not rows:
        return empty_figure("this model does not expose it")
    figure = new_figure(height=150 + 56 * len(rows))
    titles = [names[row["measure"]] for row in rows]
    figure.add_bar(
        y=titles,
        x=[row["benign_high"] - row["benign_low"] for row in rows],
        base=[row["benign_low"] for row in rows],
        orientation="h",
        width=0.42,
        marker={"color": CONTROL, "opacity": 0.35},
        name="benign interval",
        customdata=[[row["benign_low"], row["benign_high"]] for row in rows],
        hovertemplate="%{y}<br>benign %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
    )
    figure.add_scatter(
        y=titles,
        x=[row["benign_mean"] for row in rows],
        mode="markers",
        marker={"symbol": "line-ns", "size": 18, "line": {"color": CONTROL, "width": 2.5}},
        name="benign mean",
        hovertemplate="%{y}<br>benign mean %{x:.4f}<extra></extra>",
    )
    figure.add_scatter(
        y=titles,
        x=[row["value"] for row in rows],
        error_x={
            "type": "data",
            "array": [None if row["high"] is None else row["high"] - row["value"] for row in rows],
        },
        mode="markers",
        marker={
            "color": STICKY,
            "size": 12,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)} (filled: outside)",
        hovertemplate=f"%{{y}}<br>{label(token)}: %{{x:.4f}}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest", legend={"y": -0.16, "yanchor": "top"})
    return figure


def describe_rows(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> str:
    """Describe every measure."""
    rows = shown_measures(measures, names, _NEEDED)
    if not rows:
        return "This model does not expose it."
    parts = [
        f"{names[row['measure']]} {row['value']:.3f}, {'outside' if row['outside'] else 'within'} the benign "
        f"interval of {row['benign_low']:.3f} to {row['benign_high']:.3f}"
        for row in rows
    ]
    return f"{token}: {'; '.join(parts)}."


def rows_table(measures: pl.DataFrame, names: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure."""
    return measures_table(shown_measures(measures, names, _NEEDED), names, _INTERVAL_ROWS_COLUMNS)


_PLACED = ("value", "share_below")


def embedding_place(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> go.Figure:
    """Draw the share of the vocabulary below the token, one line per measure."""
    rows = shown_measures(measures, names, _PLACED)
    if not rows:
        return empty_figure("this model does not expose its embedding matrix")
    figure = new_figure(height=140 + 44 * len(rows))
    titles = [names[row["measure"]] for row in rows]
    figure.add_scatter(
        y=[title for title in titles for _ in range(3)],
        x=[place for _ in titles for place in (0, 100, None)],
        mode="lines",
        line={"color": ORDINARY, "width": 4},
        opacity=0.35,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        y=titles,
        x=[100 * row["share_below"] for row in rows],
        customdata=[[row["value"], row["benign_mean"]] for row in rows],
        mode="markers",
        marker={
            "color": STICKY,
            "size": 13,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)}<br>(filled: outside the benign interval)",
        showlegend=True,
        cliponaxis=False,
        hovertemplate="%{y}: %{customdata[0]:.4f}, benign %{customdata[1]:.4f}<br>%{x:.1f}% of the "
        "vocabulary is below<extra></extra>",
    )
    figure.update_xaxes(title_text="% of the available tokens below", range=[-2, 102])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest")
    return figure


def describe_place(
    measures: pl.DataFrame, neighbours: pl.DataFrame, names: Mapping[str, str], token: str
) -> str:
    """Describe the row and its nearest rows."""
    rows = shown_measures(measures, names, _PLACED)
    if not rows:
        return "This model does not expose its embedding matrix."
    parts = [
        f"{names[row['measure']]} {row['value']:.3f}, above {row['share_below']:.1%} of the vocabulary"
        for row in rows
    ]
    near = ", ".join(
        f"{row['neighbour']} ({row['cosine']:.2f})" for row in neighbours.sort("rank").to_dicts()
    )
    return f"{token}: {'; '.join(parts)}." + (f" Nearest rows by cosine: {near}." if near else "")


def place_table(measures: pl.DataFrame, names: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure."""
    columns = ("value", "share_below", "benign_mean", "benign_low", "benign_high", "deviations", "outside")
    return measures_table(shown_measures(measures, names, _PLACED), names, columns)
