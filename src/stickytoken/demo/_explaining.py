"""Explain one token within the limits of the app, as figures and tables, all measures on one scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from stickytoken.demo._inputs import (
    COPIES,
    EXPLAIN_BENIGN,
    EXPLAIN_CARRIERS,
    checked_count,
    checked_placement,
)
from stickytoken.demo.shared_model import SharedModel
from stickytoken.detection.run import Run
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.tables import furthest
from stickytoken.insertion import Token
from stickytoken.measurement.progress import Progress
from stickytoken.reports.explanation_section import explanation_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.figures.style import ORDINARY, STICKY, new_figure
from stickytoken.visible_text import visible
from stickytoken.vocabulary.benign import LEAST_BENIGN

_PAIRS_ATTRIBUTED = 2
_DIRECTIONS = 256
_FINDINGS = ("measure", "layer", "begins", "value", "benign mean", "SD")


def chosen_settings(
    copies: object, carriers: object, benign: object, placement: object, attribution: object
) -> ExplainSettings:
    """Return the settings of an explanation in the app."""
    return ExplainSettings(
        copies=checked_count("the number of copies", copies, 1, COPIES),
        placement=checked_placement(placement),
        carriers=checked_count("the number of texts", carriers, 2, EXPLAIN_CARRIERS),
        benign=checked_count("the number of benign tokens", benign, LEAST_BENIGN, EXPLAIN_BENIGN),
        attribution=attribution is True,
        attribution_carriers=_PAIRS_ATTRIBUTED,
        attribution_benign=LEAST_BENIGN,
        directions=_DIRECTIONS,
    )


def explain_on(
    model: SharedModel,
    token: Token,
    run: Run | None,
    settings: ExplainSettings,
    progress: Callable[[Progress], None],
) -> Explanation:
    """Explain one token while holding the model exclusively."""
    with model.encoder() as encoder:
        return explain(encoder, [token.id], run=run, settings=settings, progress=progress)


# The overview of all measures, and the figures of the report.
FIGURES = 7


def figures_of(found: Explanation) -> list[ReportFigure | None]:
    """Return the figures of the explained token; None for a figure without data."""
    (token,) = found.tokens
    drawn = explanation_figures(found.content(token.token_id))
    overview = deviation_figure(found.measures, visible(token.token))
    return [figure if figure.table.rows else None for figure in (overview, *drawn)]


def findings_table(found: Explanation) -> DataTable:
    """Return one row per measure outside the benign interval."""
    return DataTable(
        _FINDINGS,
        [
            (
                each.called,
                layer_name(each.layer),
                layer_name(each.begins),
                each.value,
                each.benign_mean,
                each.deviations,
            )
            for each in found.tokens[0].findings
        ],
    )


def neighbours_table(found: Explanation) -> DataTable:
    """Return the nearest rows of the embedding matrix."""
    names = pl.col("neighbour"), pl.col("neighbour_id").cast(pl.String), pl.col("cosine")
    rows = found.neighbours.select(*names).rows()
    return DataTable(("nearest embedding", "id", "cosine"), rows)


def pairs_table(found: Explanation) -> DataTable:
    """Return the attributed pairs, each similarity as a sum."""
    columns = [name for name in found.pairs.columns if name not in ("token_id", "token", "pair")]
    return DataTable([name.replace("_", " ") for name in columns], found.pairs.select(columns).rows())


_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def deviation_figure(measures: pl.DataFrame, token: str) -> ReportFigure:
    """Draw all measures on one scale: standard deviations of the benign tokens."""
    rows = [row for row in furthest(measures) if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))
    figure = new_figure(height=110 + 24 * max(1, len(rows)))
    marks = ((True, "diamond", "outside the benign interval"), (False, "circle-open", "inside"))
    for outside, symbol, name in marks:
        chosen = [row for row in rows if bool(row["outside"]) is outside]
        if chosen:
            figure.add_scatter(
                x=[round(row["deviations"], 3) for row in chosen],
                y=[_measure_name(row) for row in chosen],
                mode="markers",
                marker={"color": STICKY if outside else ORDINARY, "symbol": symbol, "size": 10},
                name=name,
                hovertemplate="%{y}: %{x:.1f} SD<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": ORDINARY, "width": 1})
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[_measure_name(row) for row in rows])
    figure.update_layout(hovermode="closest")
    count = sum(bool(row["outside"]) for row in rows)
    return ReportFigure(
        "deviations",
        "All measures",
        figure,
        f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
        + (
            f" The largest deviation: {_measure_name(rows[-1])}, {rows[-1]['deviations']:+.1f} SD."
            if rows
            else ""
        ),
        "Each measure at the layer where it differs most. One measure just outside the interval means "
        "little; several far outside, together with rising similarities, mean a lot.",
        measures_table(measures),
        # The names of the measures leave little room.
        {"xaxis.title.text": "SD of the<br>benign tokens", "xaxis.nticks": 4, "xaxis.tickangle": 0},
    )


def measures_table(measures: pl.DataFrame) -> DataTable:
    """Return one row per measure, at the layer where it is furthest from the benign tokens."""
    rows = [
        tuple(layer_name(row[name]) if name == "layer" else row[name] for name in _MEASURES)
        for row in furthest(measures)
    ]
    return DataTable([name.replace("_", " ") for name in _MEASURES], rows)


def layer_name(layer: int | None) -> str | None:
    """Return a layer number as text, so that it is shown as a label."""
    return None if layer is None else str(layer)


def _measure_name(row: dict[str, Any]) -> str:
    layer = "" if row["layer"] is None else f", layer {row['layer']}"
    return f"{row['measure'].replace('_', ' ')}{layer}"
