"""What a check found, and whether the gate is open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from stickytoken.findings import Finding, Level, Rule


class Outcome(StrEnum):
    """How a check ends."""

    PASSED = "passed"
    CLOSED = "closed"
    INCONCLUSIVE = "inconclusive"


class FailOn(StrEnum):
    """The lowest grade of sticky token that counts."""

    STICKY = "sticky"
    SERIOUS = "serious"
    SEVERE = "severe"


class CheckedDocuments(NamedTuple):
    """Documents that were searched for copies of flagged tokens.

    Attributes:
        collection: where they come from.
        searched: number of documents.
        counted: number of documents that close the gate.
    """

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
