"""Turn the sticky tokens of a run into findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.detection.run_folder import FLAGGED
from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level, Rule
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.detection import Run


# Settings under which two runs measure the same thing: they change the noise or what is measured besides.
_FREE = {"seed", "budget", "confirming_texts", "reference"}
_FREE |= {"adaptive", "screen_precision", "dimensions", "layers"}


class Effect(NamedTuple):
    """What a token does beyond an ordinary one, in standard deviations of the model's own similarities."""

    value: float
    low: float
    high: float


def effect_of(row: Mapping[str, Any], run: Run) -> Effect | None:
    """Compute the effect of a row of tokens.parquet; None where it was not measured with an interval."""
    scale = run.method.scale(run)
    ends: list[Any] = [row.get(name) for name in ("lift", "lift_low", "lift_high")]
    if scale is None or None in ends:
        return None
    return Effect(*((end - scale.ordinary) / scale.spread for end in ends))


def require_comparable(run: Run, baseline: Run) -> None:
    """Refuse a baseline whose effects mean something else, or have no intervals."""
    if run.record.method != baseline.record.method:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, the run in {run.path} "
            f"used {run.record.method}: detect both with the same method"
        )
    if "lift_low" not in run.method.columns:
        raise InputError(
            f"the baseline {baseline.path} used the method {baseline.record.method}, which measures no "
            "intervals to compare: detect with --method profile"
        )
    if run.record.identity_parts.get("corpus") != baseline.record.identity_parts.get("corpus"):
        raise InputError(
            f"the baseline {baseline.path} was measured on {baseline.record.corpus.source}, the run in "
            f"{run.path} on other texts, {run.record.corpus.source}: detect both on the same sentences"
        )
    names = {*run.record.settings, *baseline.record.settings} - _FREE
    # A run from before a setting was added has its default.
    if different := sorted(name for name in names if run.settings.text(name) != baseline.settings.text(name)):
        raise InputError(
            f"the baseline {baseline.path} was measured with other settings than {run.path} "
            f"({', '.join(different)}): detect both with the same ones"
        )


class Outcome(StrEnum):
    """What a gate decides."""

    PASSED = "passed"
    CLOSED = "closed"
    INCONCLUSIVE = "inconclusive"


class FailOn(StrEnum):
    """The lowest grade of sticky token that counts."""

    STICKY = "sticky"
    SERIOUS = "serious"
    SEVERE = "severe"


class CheckedDocuments(NamedTuple):
    collection: str
    searched: int
    counted: int


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        model: the model as the run names it.
        run: the run folder that the check rests on.
        fail_on: the least sticky token that counts.
        max_tokens: number of counted tokens to tolerate.
        counted: number of tokens that count.
        sticky: number of all sticky tokens of the run.
        baseline: the run folder that it was compared with; None without one.
        rules: what was looked for.
        findings: what was found, the worst first; one of level error closes the gate.
        incomplete: why the check cannot say that all is well, one reason each.
        notes: what a reader should know.
        documents: what documents were searched; None without any.
    """

    model: str
    run: Path
    fail_on: FailOn
    max_tokens: int
    counted: int
    sticky: int
    baseline: Path | None
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    documents: CheckedDocuments | None = None

    @property
    def outcome(self) -> Outcome:
        """Closed if too much counts, inconclusive if something could not be checked, else passed."""
        if any(finding.level is Level.ERROR for finding in self.findings):
            return Outcome.CLOSED
        return Outcome.INCONCLUSIVE if self.incomplete else Outcome.PASSED

    @property
    def passed(self) -> bool:
        """Whether everything was checked and nothing counts too much."""
        return self.outcome is Outcome.PASSED

    def __repr__(self) -> str:
        return f"<Check: {self.model}, {self.outcome.value}, {self.counted:,} counted, run in {self.run}>"

    def headline(self) -> str:
        """Say in one sentence how the check ended."""
        conditions = []
        if self.fail_on is not FailOn.STICKY:
            conditions.append(" or ".join(list(FailOn)[list(FailOn).index(self.fail_on) :]))
        if self.baseline is not None:
            conditions.append("new or worse than in the baseline")
        which = f" ({', '.join(conditions)})" if conditions else ""
        number = f"{self.counted:,}" if self.counted else "no"
        tokens = "token" if self.counted == 1 else "tokens"
        tolerated = f"; {self.max_tokens:,} tolerated" if self.max_tokens else ""
        said = f"{self.outcome.value}: {self.model} has {number} sticky {tokens}{which}{tolerated}"
        if self.documents is None:
            return said
        found, searched = self.documents.counted or "none", self.documents.searched
        return f"{said}; {found} of {searched:,} documents with copies of one"

    def summary(self) -> dict[str, Any]:
        """The check in JSON values."""
        return {
            "outcome": self.outcome.value,
            "model": self.model,
            "run": str(self.run),
            "baseline": None if self.baseline is None else str(self.baseline),
            "fail_on": self.fail_on.value,
            "max": self.max_tokens,
            "counted": self.counted,
            "sticky": self.sticky,
            "documents": None if self.documents is None else self.documents._asdict(),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "findings": [
                {
                    "rule": finding.rule,
                    "level": finding.level.value,
                    "message": finding.message,
                    "path": finding.path,
                    "line": finding.line,
                    "fingerprint": finding.fingerprint,
                    **finding.properties,
                }
                for finding in self.findings
            ],
        }


STICKY_TOKEN = Rule(
    "sticky-token",
    "No token of the model is sticky",
    "Copies of a sticky token in a text raise its similarity to unrelated texts, so that a document can be "
    "pushed into search results. Explain the token with `stickytoken explain`, repair the model, or use a "
    "baseline to accept the known tokens of a model.",
    Level.ERROR,
)
_COUNTED = {FailOn.STICKY: None, FailOn.SERIOUS: {"serious", "severe"}, FailOn.SEVERE: {"severe"}}


def judge_tokens(
    run: Run,
    fail_on: FailOn,
    max_tokens: int,
    baseline: Run | None,
    place: tuple[str | None, int | None],
) -> tuple[list[Finding], int]:
    """Judge the sticky tokens of a run; return those that count before the others, and how many count.

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
    known = {} if baseline is None else {row["token"]: row for row in baseline.tokens.iter_rows(named=True)}
    judged = []
    for row in run.sticky.iter_rows(named=True):
        effect, change, before = effect_of(row, run), None, None
        if baseline is not None:
            earlier = known.get(row["token"])
            before = None if earlier is None else effect_of(earlier, baseline)
            # Only an interval above that of the baseline is a change. A token without an effect cannot be
            # compared: it counts.
            if earlier is None or before is None or effect is None:
                change = "new"
            elif effect.low <= before.high:
                change = "known"
            else:
                change = "worse" if earlier["verdict"] in FLAGGED else "new"
        counts = change != "known" and (grades is None or row["severity"] in grades)
        judged.append((row, effect, change, before, counts))
    judged.sort(key=lambda each: not each[-1])
    counted = sum(counts for *_, counts in judged)

    def ends(name: str, effect: Effect | None) -> dict[str, float | None]:
        return dict(zip((name, f"{name}_low", f"{name}_high"), effect or (None, None, None), strict=True))

    findings = []
    for row, effect, change, before, counts in judged:
        if counts:
            level = Level.ERROR if counted > max_tokens else Level.WARNING
        else:
            level = Level.NOTE if change == "known" else Level.WARNING
        properties = {
            "token_id": row["token_id"],
            "token": row["token"],
            "severity": row.get("severity"),
            "lift": row["lift"],
            **ends("effect", effect),
            "change": change,
            **ends("baseline_effect", before),
        }
        message, identity = _message(row, effect, change, before), (Path(run.model_name).name, row["token"])
        findings.append(Finding(STICKY_TOKEN.id, level, message, *place, identity, properties))
    return findings, counted


def _message(row: Mapping[str, Any], effect: Effect | None, change: str | None, before: Effect | None) -> str:
    grade = f" ({row['severity']})" if row.get("severity") else ""
    said = f"the token {visible(repr(row['token']))} is sticky{grade}"
    if effect is not None:
        said += f": copies move unrelated texts together by {_interval(effect)} standard deviations"
    elif row["lift"] is not None:
        said += f": copies raise the similarity of unrelated texts by {row['lift']:.4f}"
    if before is not None:
        return f"{said}; {change}, {_interval(before)} in the baseline"
    return f"{said}; new" if change == "new" else said


def _interval(effect: Effect) -> str:
    return f"{effect.value:.2f} ({effect.low:.2f} to {effect.high:.2f})"
