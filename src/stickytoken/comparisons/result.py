"""Several runs side by side, as numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from stickytoken.comparisons._comparability import Comparability, Measure, Reason
from stickytoken.comparisons._copies import CopiesNeeded
from stickytoken.comparisons.agreement import Agreement, ComparedToken
from stickytoken.comparisons.compared_run import ComparedRun
from stickytoken.detection.identity import IDENTITY_VERSION
from stickytoken.visible_text import visible

PER = 10_000
_MINUS = "\N{MINUS SIGN}"

READING = {
    "worst lift": "How far the worst token moves unrelated texts together beyond an ordinary token, in "
    "standard deviations of the model's own similarities. The interval is that of this one token over texts; "
    "that it is the worst of many is not in it.",
    "sticky tokens per 10,000": "Of the available tokens. The interval is exact (Clopper and Pearson 1934). "
    "It treats the examined tokens as draws: a sample from its vocabulary, a whole vocabulary from others "
    "that could have been built. Wrong verdicts are not in it.",
    "copies until serious": "The fewest copies of the worst token, among the numbers that were tried, that "
    "lift unrelated texts seriously beyond an ordinary token. Read from the symptom curves of the report: "
    "copies at the end of a few texts, over all pairs below the mean similarity.",
    "repaired copy": "Whether the run folder records a repaired copy of the model, and whether that was "
    "verified.",
}
_SCHEMA = {
    "run": pl.String,
    "folder": pl.String,
    "model": pl.String,
    "method": pl.String,
    "texts": pl.String,
    "examined": pl.Int64,
    "available": pl.Int64,
    "selection": pl.String,
    "worst_token_id": pl.Int64,
    "worst_token": pl.String,
    "worst_verdict": pl.String,
    "worst_severity": pl.String,
    "worst_sd": pl.Float64,
    "worst_sd_low": pl.Float64,
    "worst_sd_high": pl.Float64,
    "sticky": pl.Int64,
    "sticky_per_10000": pl.Float64,
    "sticky_per_10000_low": pl.Float64,
    "sticky_per_10000_high": pl.Float64,
    "confidence": pl.Float64,
    "copies_until_serious": pl.Int64,
    "copies_too_few": pl.Int64,
    "repair": pl.String,
}


@dataclass(frozen=True)
class Comparison:
    """Finished runs side by side, in the order that they were passed in.

    Attributes:
        runs: the runs with their names.
        comparability: what can be compared between them.
        agreements: one per pair of runs.
        tokens: every token that a run calls sticky; those that most runs flag, and most strongly, first.
    """

    runs: tuple[ComparedRun, ...]
    comparability: Comparability
    agreements: tuple[Agreement, ...]
    tokens: tuple[ComparedToken, ...]

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs, distinct."""
        return tuple(each.name for each in self.runs)

    @property
    def table(self) -> pl.DataFrame:
        """One row per run with all numbers; what is not known is null."""
        return pl.DataFrame([_row(each) for each in self.runs], schema=_SCHEMA)

    @property
    def notes(self) -> list[str]:
        """What a reader should know before relying on single runs."""
        found = [
            f"{each.name}: made by an earlier version of the method: detect again for present verdicts"
            for each in self.runs
            if _is_old(each)
        ]
        found += [
            f"{each.name}: the worst lift is serious over all placements of copies, but not in the curve, "
            "whose copies stand at the end of texts"
            for each in self.runs
            if _is_serious_elsewhere(each)
        ]
        for each in self.runs:
            found += [f"{each.name}: {note}" for note in each.run.method.notes(each.run)]
        return found

    @property
    def basis(self) -> str:
        """Say what the intervals are."""
        levels = sorted({each.confidence for each in self.runs})
        said = " and ".join(f"{100 * level:.4g}%" for level in levels)
        return (
            f"intervals: {said}; of the worst lift over texts, for that one token; of the share of sticky "
            "tokens exact (Clopper and Pearson 1934)"
        )

    def summary(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        answers, reasons = self.comparability
        return {
            "runs": self.table.to_dicts(),
            "comparable": {measure.value: answer.value for measure, answer in answers.items()},
            "reasons": [
                {"answer": each.answer.value, "said": each.said, "measures": [m.value for m in each.measures]}
                for each in reasons
            ],
            "notes": self.notes,
            "agreements": [asdict(each) for each in self.agreements],
            "tokens": [
                {"token": each.token, "sd": list(each.standardized_lifts), "verdicts": list(each.verdicts)}
                for each in self.tokens
            ],
            "reading": READING,
        }


HEADINGS = (
    "run",
    "method",
    "examined",
    "worst token",
    "worst lift, SD",
    "sticky per 10,000",
    "copies until serious",
    "repaired copy",
)


def shown_rows(comparison: Comparison) -> list[Sequence[str]]:
    """Return one row of texts per run, under `HEADINGS`."""
    return [
        (
            each.name,
            each.run.record.method,
            f"{len(each.run.tokens):,} of {each.run.available:,}",
            shown_worst(each),
            shown_deviations(each),
            shown_share(each),
            shown_copies(each.copies),
            shown_repair(each),
        )
        for each in comparison.runs
    ]


def shown_reason(reason: Reason) -> str:
    """Write a reason with the measures that it affects, unless these are all."""
    if len(reason.measures) == len(Measure):
        return reason.said
    return f"{', '.join(measure.value for measure in reason.measures)}: {reason.said}"


def shown_copies(found: CopiesNeeded | None) -> str:
    """Write how many copies make a lift serious; a dash where it is unknown."""
    if found is None:
        return "-"
    if found.enough is None:
        return f"more than {found.too_few}"
    if found.too_few is None or found.enough - found.too_few == 1:
        return str(found.enough)
    return f"{found.too_few + 1} to {found.enough}"


def shown_repair(each: ComparedRun) -> str:
    """Say whether the run records a repaired copy of its model."""
    if each.is_repaired:
        return "is itself repaired"
    return "no" if each.repair is None else each.repair.state


def shown_worst(each: ComparedRun) -> str:
    """Write the worst token with its grade or verdict."""
    if each.worst is None:
        return "-"
    return f"{visible(repr(each.worst.token))} ({each.worst.severity or each.worst.verdict or 'not judged'})"


def shown_deviations(each: ComparedRun) -> str:
    """Write the worst lift with its interval."""
    worst = each.worst
    if worst is None or worst.deviations is None:
        return "-"
    value = f"{worst.deviations:.2f}"
    if worst.low is not None and worst.high is not None:
        value += f" ({worst.low:.2f} to {worst.high:.2f})"
    return value.replace("-", _MINUS)


def shown_share(each: ComparedRun) -> str:
    """Write the sticky tokens per 10,000 with their interval."""
    if each.share is None:
        return "-"
    value, low, high = (PER * part for part in each.share)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _row(each: ComparedRun) -> dict[str, Any]:
    run, worst = each.run, each.worst
    share = (None, None, None) if each.share is None else tuple(PER * part for part in each.share)
    copies = each.copies or CopiesNeeded(None, None)
    found: tuple[Any, ...] = (None,) * 7 if worst is None else worst
    values = (
        *(each.name, str(run.path), run.model_name, run.record.method, run.record.corpus.source),
        *(len(run.tokens), run.available, each.examined.value),
        *found,
        *(len(run.sticky), *share, each.confidence),
        *(*copies, shown_repair(each)),
    )
    return dict(zip(_SCHEMA, values, strict=True))


def _is_old(each: ComparedRun) -> bool:
    version = each.run.record.identity_parts.get("version")
    return isinstance(version, int) and version < IDENTITY_VERSION


def _is_serious_elsewhere(each: ComparedRun) -> bool:
    """Check whether the lift of the worst token is serious over all placements, but not in its curve."""
    if each.worst is None or each.worst.deviations is None or each.copies is None or each.scale is None:
        return False
    return each.worst.deviations >= each.scale.serious and each.copies.enough is None
