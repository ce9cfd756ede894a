"""Explain one token within the limits of the app, as figures and tables."""

from __future__ import annotations

from collections.abc import Callable

from stickytoken.demo._deviation_figure import deviation_figure, layer_name
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
from stickytoken.insertion import Token
from stickytoken.measurement.progress import Progress
from stickytoken.reports.explanation_section import explanation_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.visible_text import visible
from stickytoken.vocabulary.benign import LEAST_BENIGN

_PAIRS_ATTRIBUTED = 2
_DIRECTIONS = 256
_FINDINGS = ("measure", "layer", "begins", "value", "benign mean", "SD")


def chosen_settings(
    copies: object, carriers: object, benign: object, placement: object, attribution: object
) -> ExplainSettings:
    """Return the settings of an explanation in the app.

    Raises:
        InputError: a value is not allowed.
    """
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
    rows = found.neighbours.select("neighbour", "neighbour_id", "cosine").rows()
    return DataTable(("nearest embedding", "id", "cosine"), rows)


def pairs_table(found: Explanation) -> DataTable:
    """Return the attributed pairs, each similarity as a sum."""
    columns = [name for name in found.pairs.columns if name not in ("token_id", "token", "pair")]
    return DataTable([name.replace("_", " ") for name in columns], found.pairs.select(columns).rows())
