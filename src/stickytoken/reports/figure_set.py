"""The figures of one run, in the order of the report."""

from __future__ import annotations

import polars as pl

from stickytoken.detection.run import Run
from stickytoken.methods.entry import Distribution, Scatter
from stickytoken.reports._sections import impact_figures, repair_figures
from stickytoken.reports.content import MOST_CARDS, RunContent
from stickytoken.reports.figures import comparison as by_dimension
from stickytoken.reports.figures import distribution, symptom_curves
from stickytoken.reports.figures import distribution as composition
from stickytoken.reports.figures import distribution as effect_scatter
from stickytoken.reports.figures.figure import ReportFigure, stacked
from stickytoken.reports.figures.symptom_curves import Curve


def report_figures(content: RunContent) -> list[ReportFigure]:
    """Return all figures that the run has data for; none for an unfinished run."""
    if content.run is None:
        return []
    described = content.method.figures(content.run)
    found = [_distribution(content, each) for each in described if isinstance(each, Distribution)]
    found += curve_figures(content, content.run)
    found += [_scatter(content, each) for each in described if isinstance(each, Scatter)]
    found += _dimensions(content.run)
    found += [*_composition(content), *_map(content), *impact_figures(content.impacts)]
    return [*found, *repair_figures(content.repairs)]


def _distribution(content: RunContent, described: Distribution) -> ReportFigure:
    key, title = described.column.key, described.column.title
    return ReportFigure(
        described.name,
        described.title,
        distribution.draw_distribution(content.tokens, key, title, dict(described.lines)),
        distribution.describe_distribution(content.tokens, key, title),
        described.reading,
        distribution.table_distribution(content.tokens, key),
    )


def curves_of(content: RunContent) -> tuple[list[Curve], list[Curve]]:
    """Return the symptom curves of the tokens shown, worst first, and those of ordinary tokens."""
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
    """Return the figure of the symptom curves; none if the run has no evidence."""
    if content.evidence is None:
        return []
    curves, controls = curves_of(content)
    u = run.plan.mean_similarity
    plot = symptom_curves.draw(curves, controls, u)
    return [
        ReportFigure(
            "symptom-curves",
            "Symptom curves",
            plot,
            symptom_curves.describe(curves, controls, u),
            "Copies of a token are appended to a text. Unrelated pairs lie below the model's mean similarity "
            "u (dotted): a sticky token raises these more than ordinary tokens do (green, dashed; the band "
            "is their range). Related pairs lie above u: a few copies may raise these as well; many copies "
            "of any token lower them, because less and less of the text is left in the vector.",
            symptom_curves.table(curves, controls),
            stacked(plot, 2, 820) if curves else {},
        )
    ]


def _scatter(content: RunContent, described: Scatter) -> ReportFigure:
    x, y = described.x.key, described.y.key
    names = (described.x.title, described.y.title)
    return ReportFigure(
        described.name,
        described.title,
        effect_scatter.draw_effect_scatter(content.tokens, x, y, names),
        effect_scatter.describe_effect_scatter(content.tokens, x, y, names),
        described.reading,
        effect_scatter.table_effect_scatter(content.tokens, x, y, names),
    )


def _dimensions(run: Run) -> list[ReportFigure]:
    rows = run.by_dimension().to_dicts()
    if not rows:
        return []
    plot = by_dimension.draw_by_dimension(rows)
    return [
        ReportFigure(
            "by-dimension",
            "By dimension and layer",
            plot,
            by_dimension.describe_by_dimension(rows),
            "What the tokens do if only the first components of the vectors are used, or the vectors after "
            "an earlier layer; the model as it is comes first. Left, flagged tokens by severity. The spread "
            "of the similarities (right) is what one SD is worth: where it grows, one lift matters less.",
            by_dimension.table_by_dimension(rows),
            stacked(plot, 3, 980),
            in_markdown=True,
        )
    ]


def _composition(content: RunContent) -> list[ReportFigure]:
    """Return the figure of kinds, scripts and lengths; none while cards say that of every sticky token."""
    if len(content.sticky) <= MOST_CARDS:
        return []
    parts = composition.breakdowns(content.tokens)
    plot = composition.draw_composition(parts)
    figure = ReportFigure(
        "who-they-are",
        "What the sticky tokens are",
        plot,
        composition.describe_composition(parts),
        "Grey: all tokens that the run examined. Orange: the sticky ones. Where the orange bar is higher, "
        "the group is over-represented among sticky tokens. Position is the rank of the token id: many "
        "tokenizers put special and unused entries first or last, and frequent words before rare ones.",
        composition.table_composition(parts),
        stacked(plot, len(parts), 1180),
    )
    return [figure]


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
    axes = ("cosine to the vocabulary's mean", "first principal component of the rest")
    explained = content.evidence.record.map_explained
    share = "" if explained is None else f", which explains {explained:.1%} of the remaining variance"
    return [
        ReportFigure(
            "embedding-map",
            "A map of the vocabulary",
            effect_scatter.draw_effect_scatter(placed, "to_mean", "component", axes),
            effect_scatter.describe_effect_scatter(placed, "to_mean", "component", axes),
            f"Each point is a token encoded by itself: {int(placed['drawn'].sum()):,} random tokens and all "
            "flagged ones. Horizontal: how close its vector is to the mean vector of the vocabulary. "
            f"Vertical: the direction in which the vectors vary most otherwise{share}. Stickiness is about "
            "what copies do to other texts; the map does not decide it, and a sticky token can lie anywhere.",
            effect_scatter.table_effect_scatter(placed, "to_mean", "component", axes),
        )
    ]
