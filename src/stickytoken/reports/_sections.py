"""Repairs of a run's model as figures, notes and facts of its report."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.impacts.results import Impact, measured_kind
from stickytoken.impacts.statistics import settings_line
from stickytoken.repairs.plan import mean_curves
from stickytoken.repairs.result import RepairRecord, token_rows
from stickytoken.reports.figures import impact_costs
from stickytoken.reports.figures import impact_costs as intrusion_curves
from stickytoken.reports.figures import impact_costs as repair_effect
from stickytoken.reports.figures.figure import ReportFigure, stacked

# Only the latest repairs are shown.
_MOST_SHOWN = 2
_STATES = {True: "verified", False: "NOT VERIFIED", None: "not verified: the verification was switched off"}


def repair_figures(repairs: tuple[RepairRecord, ...]) -> list[ReportFigure]:
    """Return the figures of the latest repairs."""
    found: list[ReportFigure] = []
    for place, record in enumerate(repairs[:_MOST_SHOWN]):
        suffix = f"-{place + 1}" if place else ""
        rows = token_rows(record)
        found.append(
            ReportFigure(
                f"repair{suffix}",
                "What a repair changed",
                repair_effect.repaired_tokens(rows),
                f"{_state(record)} {repair_effect.describe_repaired(rows)}",
                "Each repaired token, measured on texts that this run has not used, with another seed. "
                f"{_findings(record)}",
                repair_effect.repaired_table(rows),
                in_markdown=True,
            )
        )
        curves = mean_curves([token.curve for token in record.tokens if token.curve is not None])
        if curves is not None:
            found.append(
                ReportFigure(
                    f"repair-curves{suffix}",
                    "Symptom curves before and after the repair",
                    repair_effect.repair_curves(curves.copies, curves.lines),
                    repair_effect.describe_repair_curves(curves.copies, curves.lines),
                    "Copies of a repaired token are added to one of two unrelated texts; the mean over all "
                    "repaired tokens. After a repair, the curve should follow that of ordinary tokens.",
                    repair_effect.repair_curves_table(curves.copies, curves.lines),
                )
            )
    return found


def repair_notes(repairs: tuple[RepairRecord, ...]) -> list[str]:
    """Return what a reader should know about the repairs."""
    found = [
        f"repair {record.identity[:12]}: {check.name} FAILED: {check.finding}"
        for record in repairs[:_MOST_SHOWN]
        if record.verification is not None
        for check in record.verification.checks
        if not check.passed
    ]
    if repairs and repairs[0].verified:
        found.append(
            f"a repaired copy of the model was written on {repairs[0].started[:10]} and verified: encode "
            "your documents with it"
        )
    if len(repairs) > _MOST_SHOWN:
        found.append(f"only the latest {_MOST_SHOWN} of {len(repairs)} repairs are shown")
    return found


def repair_facts(repairs: tuple[RepairRecord, ...]) -> dict[str, dict[str, Any]]:
    """Return what was done and checked in each repair, by name."""
    return {
        f"repair {record.identity[:12]}": {
            "state": _STATES[record.verified],
            "strategy": record.strategy,
            "tokens": len(record.tokens),
            **({} if record.verification is None else _checks(record)),
            "seconds": record.seconds,
            "started": record.started,
        }
        for record in repairs[:_MOST_SHOWN]
    }


def _checks(record: RepairRecord) -> dict[str, Any]:
    checks = [] if record.verification is None else record.verification.checks
    return {check.name: f"{'' if check.passed else 'FAILED: '}{check.finding}" for check in checks}


def _state(record: RepairRecord) -> str:
    state = _STATES[record.verified]
    return f"{state[0].upper()}{state[1:]}."


def _findings(record: RepairRecord) -> str:
    return " ".join(f"{finding[0].upper()}{finding[1:]}." for finding in _checks(record).values())


# Only the latest measurements are shown.
_MOST_IMPACTS_SHOWN = 3


def impact_figures(impacts: tuple[Impact, ...]) -> list[ReportFigure]:
    """Return the figures of the latest measurements."""
    found: list[ReportFigure] = []
    for place, impact in enumerate(impacts[:_MOST_IMPACTS_SHOWN]):
        suffix = f"-{place + 1}" if place else ""
        found += [*_costs(impact, suffix), *_intrusion(impact, suffix)]
    return found


def impact_notes(impacts: tuple[Impact, ...]) -> list[str]:
    """Return what a reader should know about the measurements."""
    found = [
        f"impact: {name} was not measured: {reason}"
        for impact in impacts[:_MOST_IMPACTS_SHOWN]
        for name, reason in impact.failed.items()
    ]
    if len(impacts) > _MOST_IMPACTS_SHOWN:
        found.append(
            f"only the latest {_MOST_IMPACTS_SHOWN} of {len(impacts)} impact measurements "
            "in the run folder are shown"
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
        for impact in impacts[:_MOST_IMPACTS_SHOWN]
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
            intrusion_curves.draw_intrusion_curves(summary, impact.intrusion_curves.to_dicts(), kind),
            intrusion_curves.describe_intrusion_curves(summary, kind),
            f"Copies went into {summary[0]['documents']} random documents; the curves count the queries that "
            "have such a document among their first 10 results. Dotted: without copies. Below that line, "
            "copies push documents out of results. The ratio compares measured with benign copies, so it can "
            "rise while both fall.",
            intrusion_curves.table_intrusion_curves(summary, kind),
            in_markdown=True,
        )
    ]
