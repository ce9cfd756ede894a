"""Impact measurements of a run folder as figures and facts of its report."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.impacts.conclusion import settings_line
from stickytoken.impacts.record import measured_kind
from stickytoken.impacts.results import Impact
from stickytoken.reports.figures import impact_costs, intrusion_curves
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.reports.figures.panels import stacked

# Only the latest measurements are shown.
_MOST_SHOWN = 3


def impact_figures(impacts: tuple[Impact, ...]) -> list[ReportFigure]:
    """Return the figures of the latest measurements."""
    found: list[ReportFigure] = []
    for place, impact in enumerate(impacts[:_MOST_SHOWN]):
        suffix = f"-{place + 1}" if place else ""
        found += [*_costs(impact, suffix), *_intrusion(impact, suffix)]
    return found


def impact_notes(impacts: tuple[Impact, ...]) -> list[str]:
    """Return what a reader should know about the measurements."""
    found = [
        f"impact: {name} was not measured: {reason}"
        for impact in impacts[:_MOST_SHOWN]
        for name, reason in impact.failed.items()
    ]
    if len(impacts) > _MOST_SHOWN:
        found.append(
            f"only the latest {_MOST_SHOWN} of {len(impacts)} impact measurements in the run folder are shown"
        )
    return found


def impact_facts(impacts: tuple[Impact, ...]) -> dict[str, dict[str, Any]]:
    """Return how each measurement was made, by name."""
    return {
        f"impact {impact.path.name}": {
            **impact.record.settings,
            **{
                f"{kind} tokens": [each.token for each in impact.record.tokens if each.kind == kind]
                for kind in ("sticky", "named", "benign")
                if any(each.kind == kind for each in impact.record.tokens)
            },
            "texts": impact.result.sequences,
            "seconds": impact.result.seconds,
            **{f"texts cut, {task.name}": task.cut for task in impact.result.tasks if task.cut},
        }
        for impact in impacts[:_MOST_SHOWN]
    }


def _costs(impact: Impact, suffix: str) -> list[ReportFigure]:
    effects, kind = impact.effects.to_dicts(), measured_kind(impact.record)
    if not effects:
        return []
    main = impact.effects.filter("main").select("task", "metric")
    conditions = impact.conditions.join(main, on=["task", "metric"], maintain_order="left")
    rows = conditions.filter(pl.col("kind") != "clean").to_dicts()
    plot = impact_costs.token_costs(rows, kind)
    return [
        ReportFigure(
            f"impact-costs{suffix}",
            "What copies cost",
            impact_costs.costs(effects, kind),
            impact_costs.describe_costs(effects, kind),
            f"{settings_line(impact.record.settings)}. The further right, the more of the score is lost. "
            "Copies of any token cost something; what counts is how much more the measured ones cost than "
            "the benign. Whether other tokens of either kind would differ, only the p value says: it "
            "compares tokens with their matches.",
            impact_costs.costs_table(effects, kind),
            {"xaxis.title.text": "score lost<br>(clean minus edited)"},
            in_markdown=True,
        ),
        ReportFigure(
            f"impact-tokens{suffix}",
            "What copies of each token cost",
            plot,
            impact_costs.describe_token_costs(rows, kind),
            "The main metric of each task. The benign tokens match the measured ones in category, length and "
            "position in the vocabulary, and are not flagged. A mixture "
            "divides the copies among all tokens of its kind.",
            impact_costs.token_costs_table(rows),
            stacked(plot, len(main), len(main) * plot.layout.height) if len(main) > 1 else {},
            in_markdown=True,
        ),
    ]


def _intrusion(impact: Impact, suffix: str) -> list[ReportFigure]:
    summary, kind = impact.intrusion.to_dicts(), measured_kind(impact.record)
    if not summary:
        return []
    return [
        ReportFigure(
            f"intrusion{suffix}",
            "Documents pushed into search results",
            intrusion_curves.draw(summary, impact.intrusion_curves.to_dicts(), kind),
            intrusion_curves.describe(summary, kind),
            f"Copies went into {summary[0]['documents']} random documents; the curves count the queries that "
            "have such a document among their first 10 results. Dotted: without copies. Below that line, "
            "copies push documents out of results. The ratio compares measured with benign copies, so it can "
            "rise while both fall.",
            intrusion_curves.table(summary, kind),
            in_markdown=True,
        )
    ]
