"""Attention that the copies of an explained token receive, by layer and head."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import diverging, empty_figure, new_figure

# Beyond so many standard deviations of the benign tokens colours do not go further.
_STRONGEST = 10.0
_NAMED = 5
_ROW_HEIGHT = 26


def draw(heads: pl.DataFrame) -> go.Figure:
    """Draw one cell per layer and head: how far the token's share of attention is from the benign ones.

    Args:
        heads: of one token, as `heads.parquet` has them.
    """
    single = _single_heads(heads)
    if single.is_empty():
        return empty_figure("this model does not expose its attention")
    layers, width = single["layer"].unique().sort().to_list(), int(single["head"].max()) + 1  # type: ignore[arg-type]
    rows = {(row["layer"], row["head"]): row for row in single.to_dicts()}
    cells = [[rows.get((layer, head)) for head in range(width)] for layer in layers]
    figure = new_figure(height=170 + _ROW_HEIGHT * len(layers))
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


def describe(heads: pl.DataFrame) -> str:
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


def table(heads: pl.DataFrame) -> DataTable:
    """Return the mean over each layer's heads, and the heads that differ most from the benign ones."""
    single = _single_heads(heads).sort("wasserstein", descending=True, nulls_last=True)
    shown = pl.concat([heads.filter(pl.col("head").is_null()).sort("layer"), single.head(_NAMED)])
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
