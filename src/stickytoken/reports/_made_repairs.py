"""Repairs of a run's model as figures, notes and facts of its report."""

from __future__ import annotations

from typing import Any

from stickytoken.repairs.curves import mean_curves
from stickytoken.repairs.record import RepairRecord
from stickytoken.repairs.result import token_rows
from stickytoken.reports.figures import repair_effect
from stickytoken.reports.figures.figure import ReportFigure

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
