"""The figures of one run, in the order of the report."""

from __future__ import annotations

import polars as pl

from stickytoken.detection.run import Run
from stickytoken.methods.descriptions import Distribution, Scatter
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures.composition import (
    breakdowns,
    composition,
    composition_table,
    describe_composition,
)
from stickytoken.reports.figures.distribution import (
    describe_distribution,
    distribution,
    distribution_table,
)
from stickytoken.reports.figures.effect_scatter import describe_scatter, effect_scatter, scatter_table
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.reports.figures.panels import stacked
from stickytoken.reports.figures.symptom_curves import (
    Curve,
    curves_table,
    describe_curves,
    symptom_curves,
)
from stickytoken.reports.measured_impacts import impact_figures


def report_figures(content: RunContent) -> list[ReportFigure]:
    """All figures that the run has data for; none where it is not finished."""
    if content.run is None:
        return []
    described = content.method.figures(content.run)
    found = [_distribution(content, each) for each in described if isinstance(each, Distribution)]
    found += curve_figures(content, content.run)
    found += [_scatter(content, each) for each in described if isinstance(each, Scatter)]
    return [*found, _composition(content), *_map(content), *impact_figures(content.impacts)]


def _distribution(content: RunContent, described: Distribution) -> ReportFigure:
    key, title = described.column.key, described.column.title
    return ReportFigure(
        described.name,
        described.title,
        distribution(content.tokens, key, title, dict(described.lines)),
        describe_distribution(content.tokens, key, title),
        described.reading,
        distribution_table(content.tokens, key),
    )


def curves_of(content: RunContent) -> tuple[list[Curve], list[Curve]]:
    """Symptom curves of the tokens that are shown, worst first, and of ordinary ones."""
    if content.evidence is None:
        return [], []
    names = content.tokens.select("token_id", "token", "verdict")
    if content.vocabulary is not None:
        texts = content.vocabulary.select("token_id", "token")
        names = texts.join(names.drop("token"), on="token_id", how="left").select(names.columns)
    rows = content.evidence.tokens.join(names, on="token_id", how="left", maintain_order="left").to_dicts()
    found: tuple[list[Curve], list[Curve]] = ([], [])
    for row in rows:
        curve = Curve(
            row["token"] or f"id {row['token_id']}", row["verdict"], row["copies"], row["below"], row["above"]
        )
        found[row["ordinary"]].append(curve)
    return found


def curve_figures(content: RunContent, run: Run) -> list[ReportFigure]:
    """The symptom curves of a run's evidence; none where it holds none."""
    if content.evidence is None:
        return []
    curves, controls = curves_of(content)
    u = run.plan.mean_similarity
    plot = symptom_curves(curves, controls, u)
    return [
        ReportFigure(
            "symptom-curves",
            "Symptom curves",
            plot,
            describe_curves(curves, controls, u),
            "Copies of a token are put behind a text. A sticky token raises the similarity of unrelated "
            "texts and lowers that of related ones: both go toward one value, and meaning is lost. Dotted: "
            "the model's mean similarity u. Ordinary tokens (green, dashed; the band is their range) lower "
            "the related ones too, as any padding does, but do not lift the unrelated ones as far.",
            curves_table(curves, controls),
            stacked(plot, 2, 820) if curves else {},
        )
    ]


def _scatter(content: RunContent, described: Scatter) -> ReportFigure:
    x, y = described.x.key, described.y.key
    names = (described.x.title, described.y.title)
    return ReportFigure(
        described.name,
        described.title,
        effect_scatter(content.tokens, x, y, names),
        describe_scatter(content.tokens, x, y, names),
        described.reading,
        scatter_table(content.tokens, x, y, names),
    )


def _composition(content: RunContent) -> ReportFigure:
    parts = breakdowns(content.tokens)
    plot = composition(parts)
    return ReportFigure(
        "who-they-are",
        "Who they are",
        plot,
        describe_composition(parts),
        "Grey: all tokens that the run looked at. Orange: the sticky ones. Where orange exceeds grey, that "
        "group is over-represented. Position is the place in the vocabulary by id: many tokenizers put "
        "special and unused entries first or last, and frequent words before rare ones.",
        composition_table(parts),
        stacked(plot, len(parts), 1180),
    )


def _map(content: RunContent) -> list[ReportFigure]:
    if content.evidence is None:
        return []
    points = content.evidence.points
    names = (
        content.vocabulary.select("token_id", "token")
        if content.vocabulary is not None
        else content.tokens.select("token_id", "token")
    )
    placed = points.join(names, on="token_id", how="left").join(
        content.tokens.select("token_id", "verdict"), on="token_id", how="left"
    )
    placed = placed.with_columns(pl.col("token").fill_null("?"))
    axes = ("cosine to the vocabulary's mean", "first component beside it")
    explained = content.evidence.record.map_explained
    share = "" if explained is None else f", which holds {explained:.1%} of the remaining variance"
    return [
        ReportFigure(
            "embedding-map",
            "A map of the vocabulary",
            effect_scatter(placed, "to_mean", "component", axes),
            describe_scatter(placed, "to_mean", "component", axes),
            f"Every token encoded as an input of its own: {int(placed['drawn'].sum()):,} random ones and all "
            "flagged ones. To the right lie tokens whose vector is close to the mean of the vocabulary, to "
            "which sticky tokens pull other texts; alone, a sticky token may look like any other. Up and "
            f"down is the direction in which the rest of the vectors varies most{share}: a map in two "
            "dimensions shows little of a space of many.",
            scatter_table(placed, "to_mean", "component", axes),
        )
    ]
