"""Figures of an explanation: attention, hidden states, pooling, attribution and the embedding of a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from stickytoken.explanation.files import StoredExplanation
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import number

_ATTENTION = {"attention_received": "from all positions", "attention_from_others": "from all but the copies"}
_READ_ATTENTION = (
    "Green: the mean of matched benign tokens, and the interval in which one more such token would lie, "
    "over all layers at once. Filled marks lie outside it; the first of them is where the effect begins. "
    "Attention shows where layers read from, not how much of it reaches the vector."
)
_DRIFT = {
    "carrier_cosine_drift": "carrier's tokens: drift",
    "copies_cosine_distance": "copies: distance to benign",
}
_READ_DRIFT = (
    "First panel: how far the states of the carrier's own tokens move when copies are added. Second "
    "panel: how far the states of the copies lie from those of matched benign tokens. Layer 0 is the "
    "embedding layer. In a causal model, tokens before the copies cannot drift."
)
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


def explanation_figures(found: StoredExplanation) -> list[ReportFigure]:
    name, token = f"explain-{found.token.token_id}", found.token.token
    measures = found.tables["measures"]
    return [
        _by_layer(
            f"{name}-attention",
            "Attention that the copies receive, by layer",
            measures,
            _ATTENTION,
            token,
            _READ_ATTENTION,
        ),
        _by_head(f"{name}-heads", found.tables["heads"]),
        _by_layer(
            f"{name}-drift", "Drift of the hidden states, by layer", measures, _DRIFT, token, _READ_DRIFT
        ),
        _pooling(f"{name}-pooling", measures, token, found.record.pooling or "unknown"),
        _attribution(f"{name}-attribution", found.tables["attribution"], found.tables["pairs"]),
        _embedding(f"{name}-embedding", measures, token, found),
    ]


def _by_layer(
    name: str, title: str, measures: pl.DataFrame, panels: Mapping[str, str], token: str, reading: str
) -> ReportFigure:
    columns = ("layer", "value", "low", "high", *_BENIGN, "outside")
    headings = ("measure", *(column.replace("_", " ") for column in columns))
    found = {}
    for measure, said in panels.items():
        rows = measures.filter(measure=measure).drop_nulls(["layer", "value"]).sort("layer").to_dicts()
        if rows:
            found[said] = rows
    if not found:
        return fig.figure_of_nothing(name, title, reading, "this model does not expose it", headings)
    words = []
    for said, rows in found.items():
        outside = [row for row in rows if row["outside"]]
        start = f"{said[:1].upper()}{said[1:]}: {token}"
        if not outside:
            words.append(f"{start} stays within the benign interval in all layers.")
            continue
        far = max(outside, key=lambda row: abs(row["deviations"] or 0.0))
        words.append(
            f"{start} leaves the benign interval in layer {outside[0]['layer']} and is furthest from it in "
            f"layer {far['layer']}, at {far['value']:.3f} where benign tokens have {far['benign_mean']:.3f}."
        )
    figure = fig.new_panels(list(found), 380, 0.1)
    for column, rows in enumerate(found.values(), start=1):
        layers = [row["layer"] for row in rows]
        low, mean, high = ([row[f"benign_{end}"] for row in rows] for end in ("low", "mean", "high"))
        fig.draw_ordinary(
            figure,
            layers,
            (low, mean, high),
            column,
            name="benign tokens: mean and interval",
            legendgroup="benign",
            showlegend=column == 1,
            hovertemplate="benign tokens<br>layer %{x}: %{y:.4f}<extra></extra>",
        )
        known = all(row[end] is not None for row in rows for end in ("low", "high"))
        arms = [row["high"] - row["value"] for row in rows] if known else []
        figure.add_scatter(
            x=layers,
            y=[row["value"] for row in rows],
            error_y={"type": "data", "array": arms, "thickness": 1.2, "width": 3} if known else None,
            customdata=["outside" if row["outside"] else "inside" for row in rows],
            mode="lines+markers",
            line={"color": fig.STICKY, "width": 2.5},
            marker={"size": 9, "symbol": _symbols(rows)},
            name=f"{fig.legend_label(token)} (filled: outside)",
            legendgroup="token",
            showlegend=column == 1,
            hovertemplate=f"{fig.label(token)}<br>layer %{{x}}: %{{y:.4f}}, %{{customdata}}<extra></extra>",
            row=1,
            col=column,
        )
    step = max(1, len(next(iter(found.values()))) // 8)
    figure.update_xaxes(title_text="layer", dtick=step, zeroline=False)
    figure.update_layout(legend={"y": -0.24, "yanchor": "top"}, hovermode="closest")
    table = DataTable(
        headings,
        [(said, *(row[column] for column in columns)) for said, rows in found.items() for row in rows],
    )
    narrow = fig.stacked(figure, len(found), 360 * len(found)) if len(found) > 1 else {}
    return ReportFigure(name, title, figure, " ".join(words), reading, table, narrow)


def _symbols(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return ["diamond" if row["outside"] else "circle-open" for row in rows]


def _by_head(name: str, heads: pl.DataFrame) -> ReportFigure:
    title = "Attention that the copies receive, by layer and head"
    reading = (
        "Orange heads attend more to these copies than to copies of matched benign tokens, blue heads "
        "less. A dot marks a head outside the benign interval over all heads at once."
    )
    single = heads.drop_nulls("head").sort("layer", "head")
    columns = ("value", "benign_mean", "deviations", "wasserstein", "wasserstein_benign", "kl", "kl_benign")
    headings = ("layer", "head", *(column.replace("_", " ") for column in columns))
    if single.is_empty():
        message = "this model does not expose its attention"
        return fig.figure_of_nothing(name, title, reading, message, headings)
    outside = single.filter("outside").to_dicts()
    said = (
        f"The copies' share of the attention is outside the benign interval in {len(outside)} of "
        f"{len(single)} heads."
    )
    if outside:
        far = max(outside, key=lambda row: abs(row["deviations"] or 0.0))
        said += (
            f" It is furthest in layer {far['layer']}, head {far['head']}: {far['value']:.3f} where benign "
            f"tokens have {far['benign_mean']:.3f}."
        )
    # The mean over each layer's heads, and the heads that differ most from the benign ones.
    furthest = single.sort("wasserstein", descending=True, nulls_last=True).head(5)
    rows = pl.concat([heads.filter(pl.col("head").is_null()).sort("layer"), furthest]).to_dicts()
    table = DataTable(
        headings,
        [
            (row["layer"], "mean" if row["head"] is None else row["head"], *(row[key] for key in columns))
            for row in rows
        ],
    )
    layers, width = single["layer"].unique().sort().to_list(), int(single["head"].max()) + 1  # type: ignore[arg-type]
    known = {(row["layer"], row["head"]): row for row in single.to_dicts()}
    cells = [[known.get((layer, head)) for head in range(width)] for layer in layers]
    shown = ("value", "benign_mean", "wasserstein")
    figure = fig.new_figure(height=170 + 26 * len(layers))
    figure.add_heatmap(
        x=list(range(width)),
        y=layers,
        z=[[cell and cell["deviations"] for cell in row] for row in cells],
        customdata=[[[cell and cell[key] for key in shown] for cell in row] for row in cells],
        text=[["●" if cell and cell["outside"] else "" for cell in row] for row in cells],
        texttemplate="%{text}",
        textfont={"size": 9, "color": "#1d2430"},
        hovertemplate="layer %{y}, head %{x}: %{z:.1f} SD<br>share %{customdata[0]:.3f}, benign "
        "%{customdata[1]:.3f}<br>Wasserstein distance %{customdata[2]:.3f}<extra></extra>",
        **fig.diverging(10.0, "SD from benign"),  # colours go no further
    )
    figure.update_xaxes(title_text="head", dtick=1 if width <= 16 else 4, showgrid=False)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if len(layers) <= 12 else 4)
    return ReportFigure(name, title, figure, said, reading, table)


def _pooling(name: str, measures: pl.DataFrame, token: str, pooling: str) -> ReportFigure:
    title = "What the copies contribute to the sentence vector"
    reading = (
        f"Pooling of this model: {pooling}. With mean pooling every position contributes a share; with "
        "CLS or last-token pooling the copies contribute nothing, or everything, by construction. Green: the "
        "interval of the matched benign tokens."
    )
    rows = _measured(measures, _POOLING, ("value", "benign_low", "benign_high"))
    table = _table(rows, ("value", "low", "high", *_BENIGN, "outside"))
    if not rows:
        return fig.figure_of_nothing(name, title, reading, "this model does not expose it", table.columns)
    figure = fig.new_figure(height=150 + 56 * len(rows))
    titles = [row["measure"] for row in rows]
    figure.add_bar(
        y=titles,
        x=[row["benign_high"] - row["benign_low"] for row in rows],
        base=[row["benign_low"] for row in rows],
        orientation="h",
        width=0.42,
        marker={"color": fig.CONTROL, "opacity": 0.35},
        name="benign interval",
        customdata=[[row["benign_low"], row["benign_high"]] for row in rows],
        hovertemplate="%{y}<br>benign %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
    )
    figure.add_scatter(
        y=titles,
        x=[row["benign_mean"] for row in rows],
        mode="markers",
        marker={"symbol": "line-ns", "size": 18, "line": {"color": fig.CONTROL, "width": 2.5}},
        name="benign mean",
        hovertemplate="%{y}<br>benign mean %{x:.4f}<extra></extra>",
    )
    arms = [None if row["high"] is None else row["high"] - row["value"] for row in rows]
    figure.add_scatter(
        y=titles,
        x=[row["value"] for row in rows],
        error_x={"type": "data", "array": arms},
        mode="markers",
        marker={"color": fig.STICKY, "size": 12, "symbol": _symbols(rows)},
        name=f"{fig.legend_label(token)} (filled: outside)",
        hovertemplate=f"%{{y}}<br>{fig.label(token)}: %{{x:.4f}}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest", legend={"y": -0.16, "yanchor": "top"})
    parts = "; ".join(
        f"{row['measure']} {row['value']:.3f}, {'outside' if row['outside'] else 'within'} the benign "
        f"interval of {row['benign_low']:.3f} to {row['benign_high']:.3f}"
        for row in rows
    )
    return ReportFigure(name, title, figure, f"{token}: {parts}.", reading, table)


def _measured(
    measures: pl.DataFrame, names: Mapping[str, str], needed: Sequence[str]
) -> list[dict[str, Any]]:
    found = {row["measure"]: row for row in measures.drop_nulls(needed).to_dicts()}
    return [found[key] | {"measure": said} for key, said in names.items() if key in found]


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> DataTable:
    return DataTable.of({column: column.replace("_", " ") for column in ("measure", *columns)}, rows)


def _embedding(name: str, measures: pl.DataFrame, token: str, found: StoredExplanation) -> ReportFigure:
    title = "The row of the embedding matrix"
    reading = (
        "Rows close to those of unused entries were hardly trained (Land and Bartolo 2024). An unusual row "
        "need not be sticky, and a sticky token need not have an unusual row."
    )
    matrix = found.record.vocabulary
    if {"mean_cosine", "first_component_share"} <= set(matrix):
        reading += (
            f" Over the whole vocabulary the mean cosine of two rows is {number(matrix['mean_cosine'], 3)} "
            "(0: they point in all directions evenly), and the widest direction explains "
            f"{matrix['first_component_share']:.1%} of the variance."
        )
    narrow = {"xaxis.title.text": "% of the available<br>tokens below"}
    rows = _measured(measures, _EMBEDDING, ("value", "share_below"))
    table = _table(rows, ("value", "share_below", *_BENIGN, "outside"))
    if not rows:
        message = "this model does not expose its embedding matrix"
        return fig.figure_of_nothing(name, title, reading, message, table.columns, narrow=narrow)
    figure = fig.new_figure(height=140 + 44 * len(rows))
    titles = [row["measure"] for row in rows]
    figure.add_scatter(
        y=[title for title in titles for _ in range(3)],
        x=[place for _ in titles for place in (0, 100, None)],
        mode="lines",
        line={"color": fig.ORDINARY, "width": 4},
        opacity=0.35,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        y=titles,
        x=[100 * row["share_below"] for row in rows],
        customdata=[[row["value"], row["benign_mean"]] for row in rows],
        mode="markers",
        marker={"color": fig.STICKY, "size": 13, "symbol": _symbols(rows)},
        name=f"{fig.legend_label(token)}<br>(filled: outside the benign interval)",
        showlegend=True,
        cliponaxis=False,
        hovertemplate="%{y}: %{customdata[0]:.4f}, benign %{customdata[1]:.4f}<br>%{x:.1f}% of the "
        "vocabulary is below<extra></extra>",
    )
    figure.update_xaxes(title_text="% of the available tokens below", range=[-2, 102])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest")
    parts = "; ".join(
        f"{row['measure']} {row['value']:.3f}, above {row['share_below']:.1%} of the vocabulary"
        for row in rows
    )
    neighbours = found.tables["neighbours"].sort("rank").to_dicts()
    near = ", ".join(f"{row['neighbour']} ({row['cosine']:.2f})" for row in neighbours)
    said = f"{token}: {parts}." + (f" Nearest rows by cosine: {near}." if near else "")
    return ReportFigure(name, title, figure, said, reading, table, narrow)


def _attribution(name: str, cells: pl.DataFrame, pairs: pl.DataFrame) -> ReportFigure:
    title = "One pair's similarity, token by token"
    reading = (
        "Integrated Jacobians (Moeller et al. 2023): the cells sum to the similarity. Orange cells add to "
        "it, blue cells subtract. After the tokens comes the reference, a text of padding; the last "
        "column is the sum of each row. Compare row sums, and cells with one another: adjacent copies "
        "share what they contribute together."
    )
    if pairs.is_empty():
        return fig.figure_of_nothing(name, title, reading, "no similarity was attributed")
    pair = pairs.sort("pair").row(0, named=True)
    cells = cells.filter(pair=pair["pair"])
    between = cells.filter(pl.col("row") < pl.col("row").max(), pl.col("column") < pl.col("column").max())
    copies, carrier = (between.filter(row_part=part)["value"].sum() for part in ("copies", "carrier"))
    said = (
        f"The similarity of “{pair['carrier']}” and “{pair['anchor']}” is {pair['similarity_before']:.3f} "
        f"without copies and {pair['similarity']:.3f} with them. Of that, the rows of the copies "
        f"contribute {pair['from_copies']:.3f}, those of the carrier {pair['from_carrier']:.3f} and that "
        f"of the reference {pair['from_reference']:.3f}; the sum is off by "
        f"{abs(pair['completeness_error']):.2g}. Without the reference, copies contribute "
        f"{copies:.3f} and the carrier {carrier:.3f}."
    )
    by_row = (
        cells.group_by("row", maintain_order=True)
        .agg(pl.col("row_token", "row_part").first(), pl.lit("all").alias("anchor"), pl.col("value").sum())
        .sort("row")
    )
    largest = between.sort(pl.col("value").abs(), "row", "column", descending=[True, False, False])
    # The sum of every row, and the pairs of tokens that add or subtract most.
    rows = [
        *by_row.select("row_token", "row_part", "anchor", "value").iter_rows(),
        *largest.head(10).select("row_token", "row_part", "column_token", "value").iter_rows(),
    ]
    table = DataTable(("carrier with copies", "part", "anchor", "adds"), rows)
    ordered = cells.sort("row", "column")
    every_row, every_column = (ordered.unique(side).sort(side) for side in ("row", "column"))
    names = [fig.label(token) for token in every_row["row_token"]]
    columns = [fig.label(token) for token in every_column["column_token"]]
    values = ordered["value"].to_numpy().reshape(len(names), len(columns))
    # The cell of both references is near 1 and tells nothing: colours are those of the tokens.
    strongest = float(np.abs(values[:-1, :-1]).max(initial=0)) or 1.0
    values = np.hstack([values, values.sum(axis=1, keepdims=True)])
    columns.append("(sum of the row)")
    figure = fig.new_figure(height=220 + 22 * len(names))
    figure.add_heatmap(
        x=list(range(len(columns))),
        y=list(range(len(names))),
        z=values.round(6).tolist(),
        customdata=[[[left, right] for right in columns] for left in names],
        hovertemplate="%{customdata[0]} and %{customdata[1]}: %{z:.4f}<extra></extra>",
        **fig.diverging(strongest, "added to the similarity"),
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
    figure.add_vline(x=len(columns) - 1.5, line=fig.DOTTED_LINE)
    # Between the rows where copies begin or end.
    of_copies = (every_row["row_part"] == "copies").to_list()
    for place, (above, below) in enumerate(pairwise(of_copies)):
        if above != below:
            figure.add_hline(y=place + 0.5, line=fig.DOTTED_LINE)
    return ReportFigure(name, title, figure, said, reading, table)
