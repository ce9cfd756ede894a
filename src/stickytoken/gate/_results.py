"""The result of a check: its outcome, its findings, and what they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from stickytoken.cleaning import document_counts
from stickytoken.data.rows import list_columns
from stickytoken.findings import Finding, Level, Rule


class Outcome(StrEnum):
    """The outcome of a check.

    Attributes:
        PASSED: Everything was checked, and no finding makes the check fail.
        FAILED: A finding makes the check fail.
        INCONCLUSIVE: No finding makes the check fail, but something could not be checked.

    Examples:
        >>> from stickytoken.gate import Outcome
        >>> list(map(str, Outcome))
        ['passed', 'failed', 'inconclusive']
    """

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class FailOn(StrEnum):
    """The mildest grade of sticky token that counts against a model; with `NONE`, no token does.

    Examples:
        >>> from stickytoken.gate import FailOn
        >>> list(map(str, FailOn))
        ['sticky', 'mild', 'serious', 'severe', 'none']
    """

    STICKY = "sticky"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"
    NONE = "none"


# The grades that count against a model, mildest first; None if every sticky token counts, whatever its grade.
COUNTED_GRADES = {
    FailOn.STICKY: None,
    FailOn.MILD: ("mild", "serious", "severe"),
    FailOn.SERIOUS: ("serious", "severe"),
    FailOn.SEVERE: ("severe",),
    FailOn.NONE: (),
}


class CheckedDocuments(NamedTuple):
    """How many documents a check searched, how many have findings, and how many make the check fail."""

    collection: str  # name of the document collection
    searched: int  # number of documents searched
    counted: int  # number of documents that make the check fail
    causes: Mapping[str, int]  # number of documents that make the check fail, keyed by kind of finding
    found: int  # number of documents with findings of any kind
    kinds: Mapping[str, int]  # number of documents with findings, keyed by kind of finding
    columns: Sequence[str]  # columns whose text was searched
    unread_columns: Sequence[str]  # columns that contain text and were not searched
    is_chosen: bool  # whether the user named the columns to search
    reading: str  # what was read, in words


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        model: name of the model; None if a rules file does not name it.
        run: folder of the run that was checked; None if documents were checked against a rules file or a
            cleaner.
        fail_on: mildest grade of sticky token that counts against the model.
        max_tokens: number of sticky tokens that may count against the model before the check fails.
        counted: number of sticky tokens that count against the model: tokens of the grade `fail_on` or worse
            that are not already known from the baseline.
        sticky: total number of sticky tokens in the run; None without a run.
        baseline: folder of the run that served as the baseline; None without a baseline.
        rules: the rules that were checked.
        findings: the findings about documents, followed by the findings about tokens; in both groups, the
            errors come first. A finding of level error makes the check fail.
        incomplete: the reasons why something could not be checked, one sentence each. If something could not
            be checked, the check does not pass.
        notes: remarks that do not affect the outcome.
        documents: what a search of the documents found; None if no documents were passed.
        examined: number of tokens that the run examined.
        available: number of tokens in the vocabulary that the run could have examined.
        rules_file: rules file that documents were checked against; None if a run or a cleaner was passed.

    Examples:
        >>> stickytoken.check(run, max_tokens=20).headline()
        'passed: all-MiniLM-L6-v2 has 18 sticky tokens (20 tolerated)'
    """

    model: str | None
    run: Path | None
    fail_on: FailOn
    max_tokens: int
    counted: int
    sticky: int | None
    baseline: Path | None
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    documents: CheckedDocuments | None = None
    examined: int = 0
    available: int = 0
    rules_file: Path | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the check.

        A finding of level error makes it fail. If there is none, the check is inconclusive
        if something could not be checked, and passed otherwise.
        """
        if any(finding.level is Level.ERROR for finding in self.findings):
            return Outcome.FAILED
        return Outcome.INCONCLUSIVE if self.incomplete else Outcome.PASSED

    @property
    def passed(self) -> bool:
        """Whether everything was checked and no finding makes the check fail."""
        return self.outcome is Outcome.PASSED

    def __repr__(self) -> str:
        if self.run is None:
            return f"<Check: documents, {self.outcome.value}, rules in {self.rules_file or 'a cleaner'}>"
        return f"<Check: {self.model}, {self.outcome.value}, {self.counted:,} counted, run in {self.run}>"

    def headline(self) -> str:
        """Return one sentence with the outcome and the counts of tokens and documents that led to it."""
        beginning = f"{self.outcome.value}: "
        if self.outcome is Outcome.INCONCLUSIVE:
            reason = "not everything could be checked"
            if self.examined < self.available:
                reason = f"only {self.examined:,} of {self.available:,} tokens were examined"
            beginning += f"{reason}; so far, "
        clauses = []
        if self.fail_on is not FailOn.NONE:
            clauses.append(self._say_counted_tokens())
        documents = self.documents
        if documents is not None:
            count, causes = document_counts(documents.counted, documents.searched, documents.causes)
            verb = "fails" if documents.counted <= 1 else "fail"  # "none of 5 documents fails"
            clauses.append(f"{count} {verb}{causes}")
            if documents.unread_columns and not documents.is_chosen:
                listed = list_columns(documents.unread_columns)
                clauses.append(
                    f"NOT searched, although they contain text: {listed} (name columns with --column)"
                )
        return beginning + "; ".join(clauses)

    def _say_counted_tokens(self) -> str:
        """Return a clause such as "all-MiniLM-L6-v2 has 3 serious or severe sticky tokens (2 tolerated)"."""
        count = f"{self.counted:,}" if self.counted else "no"
        grades = COUNTED_GRADES[self.fail_on]
        adjective = ""
        if grades:
            *milder_grades, worst_grade = grades
            adjective = f"{worst_grade} "
            if milder_grades:
                adjective = f"{', '.join(milder_grades)} or {worst_grade} "
        noun = "sticky token" if self.counted == 1 else "sticky tokens"
        compared = ""
        if self.baseline is not None:
            verb = "is" if self.counted == 1 else "are"
            compared = f" that {verb} new or worse than in the baseline"
        tolerated = f" ({self.max_tokens:,} tolerated)" if self.max_tokens else ""
        return f"{self.model} has {count} {adjective}{noun}{compared}{tolerated}"

    def summary(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        findings = []
        for finding in self.findings:
            values = {
                "rule": finding.rule,
                "level": finding.level.value,
                "message": finding.message,
                "path": finding.path,
                "line": finding.line,
                "fingerprint": finding.fingerprint,
                **finding.properties,
            }
            findings.append(values)
        return {
            "outcome": self.outcome.value,
            "model": self.model,
            "run": None if self.run is None else str(self.run),
            "rules_file": None if self.rules_file is None else str(self.rules_file),
            "baseline": None if self.baseline is None else str(self.baseline),
            "fail_on": self.fail_on.value,
            "max": self.max_tokens,
            "counted": self.counted,
            "sticky": self.sticky,
            "documents": None if self.documents is None else self.documents._asdict(),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "findings": findings,
        }
