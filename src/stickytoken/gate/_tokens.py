"""Turn the sticky tokens of a run into findings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level, Rule
from stickytoken.gate._baseline import Baseline, Change, Effect, effect_of
from stickytoken.gate._result import FailOn
from stickytoken.visible_text import visible

if TYPE_CHECKING:
    from stickytoken.detection import Run

STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token in a text raise its similarity to unrelated texts, so that a document can be "
    "pushed into search results. Explain the token with `stickytoken explain`, repair the model, or use a "
    "baseline to accept the known tokens of a model.",
    Level.ERROR,
)
_COUNTED = {
    FailOn.STICKY: None,
    FailOn.SERIOUS: frozenset({"serious", "severe"}),
    FailOn.SEVERE: frozenset({"severe"}),
}


class Place(NamedTuple):
    """A line of a file in the repository; None where there is none."""

    path: str | None = None
    line: int | None = None


class Judged(NamedTuple):
    """Sticky tokens as findings.

    Attributes:
        findings: the worst first; those that count before the others.
        counted: number of those that count.
    """

    findings: list[Finding]
    counted: int


def judge_tokens(
    run: Run, fail_on: FailOn, max_tokens: int, baseline: Baseline | None, place: Place
) -> Judged:
    """Judge the sticky tokens of a run.

    A token that counts is an error if more than the tolerated number do, and otherwise a warning. One that is
    milder is a warning too, and one that the baseline has as well a note. Without a baseline,
    every one counts.
    """
    grades = _COUNTED[fail_on]
    if grades is not None and "severity" not in run.method.columns:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not grade tokens: use "
            "--fail-on sticky, or detect with --method profile"
        )
    judged = [_judged(row, run, baseline) for row in run.sticky.iter_rows(named=True)]
    counts = [
        change is not Change.KNOWN and (grades is None or row["severity"] in grades)
        for row, _, change in judged
    ]
    level = Level.ERROR if sum(counts) > max_tokens else Level.WARNING
    findings = [
        _finding(run, row, effect, change, _level(level, counted, change), baseline, place)
        for (row, effect, change), counted in zip(judged, counts, strict=True)
    ]
    order = sorted(range(len(findings)), key=lambda k: not counts[k])
    return Judged([findings[k] for k in order], sum(counts))


def _judged(
    row: Mapping[str, Any], run: Run, baseline: Baseline | None
) -> tuple[Mapping[str, Any], Effect | None, Change | None]:
    effect = effect_of(row, run)
    if baseline is None:
        return row, effect, None
    # A sticky token without an effect cannot be compared: it counts.
    return row, effect, Change.NEW if effect is None else baseline.change(row["token"], effect)


def _level(level: Level, counted: bool, change: Change | None) -> Level:
    if counted:
        return level
    return Level.NOTE if change is Change.KNOWN else Level.WARNING


def _finding(
    run: Run,
    row: Mapping[str, Any],
    effect: Effect | None,
    change: Change | None,
    level: Level,
    baseline: Baseline | None,
    place: Place,
) -> Finding:
    before = None if baseline is None else baseline.before(row["token"])
    return Finding(
        rule=STICKY_TOKEN.id,
        level=level,
        message=_message(row, effect, change, before),
        path=place.path,
        line=place.line,
        identity=(Path(run.model_name).name, row["token"]),
        properties={
            "token_id": row["token_id"],
            "token": row["token"],
            "severity": row.get("severity"),
            "lift": row["lift"],
            **_ends("effect", effect),
            "change": None if change is None else change.value,
            **_ends("baseline_effect", before),
        },
    )


def _ends(name: str, effect: Effect | None) -> dict[str, Any]:
    if effect is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: effect.value, f"{name}_low": effect.low, f"{name}_high": effect.high}


def _message(
    row: Mapping[str, Any], effect: Effect | None, change: Change | None, before: Effect | None
) -> str:
    grade = f" ({row['severity']})" if row.get("severity") else ""
    said = f"the token {visible(repr(row['token']))} is sticky{grade}"
    if effect is not None:
        said += f": copies move unrelated texts together by {_interval(effect)} standard deviations"
    elif row["lift"] is not None:
        said += f": copies raise the similarity of unrelated texts by {row['lift']:.4f}"
    if change is Change.NEW:
        return f"{said}; new" if before is None else f"{said}; new, {_interval(before)} in the baseline"
    if change is None or before is None:
        return said
    return f"{said}; {change.value}, {_interval(before)} in the baseline"


def _interval(effect: Effect) -> str:
    return f"{effect.value:.2f} ({effect.low:.2f} to {effect.high:.2f})"
