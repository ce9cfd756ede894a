"""An explanation as pictures: measures by layer, all measures, heads. Pure."""

from __future__ import annotations

from typing import Any

import polars as pl
from plotly.subplots import make_subplots

from stickytoken.demo.explaining import furthest
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.figures.panels import stacked
from stickytoken.reports.figures.style import CONTROL, ORDINARY, STICKY, label, new_figure

# By layer, in the order in which a reader asks.
_PANELS = {
    "attention_received": "attention that the copies receive",
    "copies_cosine_distance": "cosine distance of the copies to benign ones",
    "carrier_cosine_drift": "cosine drift of the text's own tokens",
    "copies_norm": "length of the copies' states",
}
_BAND = "rgba(0,158,115,0.15)"
_MOST_SD = 10.0
_BENIGN = "benign tokens: mean and interval"


def layer_figure(measures: pl.DataFrame, token: str) -> ReportFigure | None:
    """Values by layer beside the benign interval; None where the model has no layers or shows none.

    Args:
        measures: measures.parquet of one token.
        token: its name.
    """
    present = [name for name in _PANELS if not _by_layer(measures, name).is_empty()]
    if not present:
        return None
    figure = make_subplots(
        rows=1,
        cols=len(present),
        horizontal_spacing=0.06,
        subplot_titles=[_PANELS[name] for name in present],
        figure=new_figure(height=360),
    )
    for column, name in enumerate(present, start=1):
        _draw_panel(figure, _by_layer(measures, name), token, column)
    figure.update_xaxes(title_text="layer", dtick=2, zeroline=False)
    figure.update_yaxes(zeroline=False)
    figure.update_annotations(font={"size": 12})
    figure.update_layout(legend={"y": -0.22, "yanchor": "top"}, margin={"t": 40}, hovermode="closest")
    return ReportFigure(
        "by-layer",
        "Layer by layer",
        figure,
        _describe_layers(measures, present, token),
        "Green: the mean of the benign tokens and the band in which one more of them would lie. A measure of "
        "the token begins to differ at the first layer outside the band. Layer 0 are the embeddings.",
        _layer_table(measures, present),
        stacked(figure, len(present), 330 * len(present)),
    )


def deviation_figure(measures: pl.DataFrame, token: str) -> ReportFigure:
    """All measures on one scale: standard deviations of the benign tokens."""
    rows = [row for row in furthest(measures) if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))
    figure = new_figure(height=110 + 24 * max(1, len(rows)))
    marks = ((True, "diamond", "outside the benign interval"), (False, "circle-open", "inside"))
    for outside, symbol, name in marks:
        chosen = [row for row in rows if bool(row["outside"]) is outside]
        if chosen:
            figure.add_scatter(
                x=[round(row["deviations"], 3) for row in chosen],
                y=[_words(row) for row in chosen],
                mode="markers",
                marker={"color": STICKY if outside else ORDINARY, "symbol": symbol, "size": 10},
                name=name,
                hovertemplate="%{y}: %{x:.1f} sd<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": ORDINARY, "width": 1})
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[_words(row) for row in rows])
    figure.update_layout(hovermode="closest")
    count = sum(bool(row["outside"]) for row in rows)
    return ReportFigure(
        "deviations",
        "All measures",
        figure,
        f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
        + (f" The furthest: {_words(rows[-1])}, {rows[-1]['deviations']:+.1f} sd." if rows else ""),
        "Each at the layer where it is furthest. One measure that is barely outside is no finding; several "
        "far outside, with a rise of the similarities, are.",
    )


def head_figure(heads: pl.DataFrame, token: str) -> ReportFigure | None:
    """Attention that the copies receive by layer and head, against benign tokens; None without attention."""
    each = heads.drop_nulls("head").sort("layer", "head")
    if each.is_empty():
        return None
    layers = each["layer"].unique(maintain_order=True).to_list()
    numbers = each["head"].unique().sort().to_list()
    cells = {(row["layer"], row["head"]): row for row in each.to_dicts()}

    def column(name: str) -> list[list[Any]]:
        return [[cells.get((layer, head), {}).get(name) for head in numbers] for layer in layers]

    figure = new_figure(height=130 + 26 * len(layers))
    figure.add_heatmap(
        z=column("deviations"),
        x=[str(number) for number in numbers],
        y=[str(layer) for layer in layers],
        customdata=column("value"),
        colorscale="PuOr_r",
        zmid=0,
        zmin=-_MOST_SD,
        zmax=_MOST_SD,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": "sd"}, "thickness": 12},
        hovertemplate="layer %{y}, head %{x}: %{customdata:.3f}, %{z:.1f} sd<extra></extra>",
    )
    figure.update_xaxes(title_text="head", type="category", showgrid=False)
    figure.update_yaxes(title_text="layer", type="category", showgrid=False)
    strongest = each.sort(pl.col("deviations").abs(), descending=True, nulls_last=True)
    top = strongest.row(0, named=True)
    return ReportFigure(
        "heads",
        "Attention heads",
        figure,
        f"Attention that copies of {token} receive, by layer and head, in standard deviations of the benign "
        f"tokens. Furthest: layer {top['layer']}, head {top['head']}, with a share of {top['value']:.3f} "
        f"against {top['benign_mean']:.3f}.",
        f"Orange: more attention than copies of benign tokens receive; purple: less. Beyond {_MOST_SD:g} sd "
        "the colour does not change.",
        DataTable(
            ("layer", "head", "share", "benign mean", "sd"),
            [
                (str(row["layer"]), str(row["head"]), row["value"], row["benign_mean"], row["deviations"])
                for row in strongest.head(20).to_dicts()
            ],
        ),
    )


def _by_layer(measures: pl.DataFrame, name: str) -> pl.DataFrame:
    return measures.filter(pl.col("measure") == name).drop_nulls("layer").sort("layer")


def _draw_panel(figure: Any, rows: pl.DataFrame, token: str, column: int) -> None:
    layers = rows["layer"].to_list()
    banded = rows.drop_nulls(["benign_low", "benign_high"])
    figure.add_scatter(
        x=[*banded["layer"], *banded["layer"].reverse()],
        y=[*banded["benign_high"].round(6), *banded["benign_low"].reverse().round(6)],
        mode="lines",
        fill="toself",
        fillcolor=_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=column,
    )
    for values, name, style in (
        (rows["benign_mean"], _BENIGN, {"color": CONTROL, "dash": "dash", "width": 2.5}),
        (rows["value"], label(token), {"color": STICKY, "width": 2.5}),
    ):
        own = name != _BENIGN
        figure.add_scatter(
            x=layers,
            y=values.round(6).to_list(),
            mode="lines+markers" if own else "lines",
            line=style,
            marker={"size": 6, "symbol": "diamond"},
            name=name,
            legendgroup=str(own),
            showlegend=column == 1,
            hovertemplate=f"{name}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
            row=1,
            col=column,
        )


def _describe_layers(measures: pl.DataFrame, present: list[str], token: str) -> str:
    parts = []
    for name in present:
        rows = _by_layer(measures, name)
        outside = rows.filter(pl.col("outside").fill_null(value=False))
        begins = (
            f"is outside the benign interval from layer {outside['layer'][0]} on"
            if len(outside)
            else "stays inside the benign interval"
        )
        ends = f"{rows['value'][-1]:.3f} (benign {rows['benign_mean'][-1]:.3f})"
        parts.append(f"{_PANELS[name]} ends at {ends} and {begins}")
    return f"Copies of {token}: {'; '.join(parts)}."


def _layer_table(measures: pl.DataFrame, present: list[str]) -> DataTable:
    rows = [
        (
            _PANELS[name],
            str(row["layer"]),
            row["value"],
            row["benign_mean"],
            row["benign_low"],
            row["benign_high"],
            row["deviations"],
        )
        for name in present
        for row in _by_layer(measures, name).to_dicts()
    ]
    return DataTable(("measure", "layer", "value", "benign mean", "benign low", "benign high", "sd"), rows)


def _words(row: dict[str, Any]) -> str:
    layer = "" if row["layer"] is None else f", layer {row['layer']}"
    return f"{row['measure'].replace('_', ' ')}{layer}"
