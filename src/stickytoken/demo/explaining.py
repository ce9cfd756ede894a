"""An explanation within the limits of the app, as figures and tables. Pure but for the call."""

from __future__ import annotations

from collections.abc import Callable

from stickytoken.demo.deviation_figure import as_word, deviation_figure
from stickytoken.demo.inputs import COPIES, EXPLAIN_BENIGN, EXPLAIN_CARRIERS, checked_count, checked_placement
from stickytoken.demo.shared_model import SharedModel
from stickytoken.detection.run import Run
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.insertion import Token
from stickytoken.measurement.progress import Progress
from stickytoken.reports.explained import explanation_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.visible_text import visible
from stickytoken.vocabulary.benign import LEAST_BENIGN

_PAIRS_ATTRIBUTED = 2
_DIRECTIONS = 256
_FINDINGS = ("measure", "layer", "begins", "value", "benign mean", "sd")


def chosen_settings(
    copies: object, carriers: object, benign: object, placement: object, attribution: object
) -> ExplainSettings:
    """Settings of a visitor's explanation.

    Raises:
        InputError: a number is beyond its limits.
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
    """Explain one token; nobody else computes meanwhile."""
    with model.encoder() as encoder:
        return explain(encoder, [token.id], run=run, settings=settings, progress=progress)


# All measures, and the figures of the report.
FIGURES = 7


def figures_of(found: Explanation) -> list[ReportFigure | None]:
    """The figures of the one token that was explained; None for what there is no data of."""
    (token,) = found.tokens
    drawn = explanation_figures(found.content(token.token_id))
    overview = deviation_figure(found.measures, visible(token.token))
    return [figure if figure.table.rows else None for figure in (overview, *drawn)]


def findings_table(found: Explanation) -> DataTable:
    """A row a measure outside the benign interval."""
    return DataTable(
        _FINDINGS,
        [
            (
                each.called,
                as_word(each.layer),
                as_word(each.begins),
                each.value,
                each.benign_mean,
                each.deviations,
            )
            for each in found.tokens[0].findings
        ],
    )


def neighbours_table(found: Explanation) -> DataTable:
    """The nearest rows of the embedding matrix."""
    rows = found.neighbours.select("neighbour", "neighbour_id", "cosine").rows()
    return DataTable(("nearest embedding", "id", "cosine"), rows)


def pairs_table(found: Explanation) -> DataTable:
    """Attributed pairs: the similarity as a sum."""
    columns = [name for name in found.pairs.columns if name not in ("token_id", "token", "pair")]
    return DataTable([name.replace("_", " ") for name in columns], found.pairs.select(columns).rows())
