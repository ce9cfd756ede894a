"""Check whether a model can ship: its sticky tokens against a threshold or a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.detection.run import Run, is_run, open_run
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.errors import InputError
from stickytoken.findings import Finding, Level, Rule
from stickytoken.findings.repository import repository_path, repository_root
from stickytoken.gate._baseline import Baseline, require_comparable
from stickytoken.gate._completeness import gaps, remarks
from stickytoken.gate._result import Check, CheckedDocuments, FailOn
from stickytoken.gate._runs import DEFAULT_FOLDER, FoundRun, run_of_model
from stickytoken.gate._tokens import STICKY_TOKEN, Place, judge_tokens
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.measurement.store import TOKENS_FILE
from stickytoken.validation import file_path, require_callable, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.detection import Run
    from stickytoken.scanning.reading.opening import DocumentSource


def check(
    source: AnyModel | Run,
    *,
    fail_on: FailOn | str = FailOn.STICKY,
    max_tokens: int = 0,
    baseline: Run | str | Path | None = None,
    documents: DocumentSource | None = None,
    column: str | None = None,
    folder: str | Path = DEFAULT_FOLDER,
    revision: str | None = None,
    place: tuple[str, int] | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Check:
    """Check whether a model can ship.

    Args:
        source: a run, or a model: anything that `load_encoder` takes. Of a model, the newest run over the
            whole vocabulary is used that is proven to be of this very model; without one, a detection is run.
        fail_on: the least sticky token that counts: ``sticky``, ``serious`` or ``severe``.
        max_tokens: number of counted tokens to tolerate.
        baseline: a run of the model as it was, or of another one; only tokens that are new or worse count,
            and only where the intervals of the two runs do not overlap.
        documents: anything that `stickytoken.scan` takes; a document with copies of a flagged token closes
            the gate, and one that cannot be read makes the check inconclusive.
        column: the column with the text of the documents.
        folder: for a model: the folder that holds its runs, or a run folder.
        revision: for a name of a model on the hub: branch, tag or commit.
        place: file in the repository and line where findings are shown; None is the run's table of tokens.
        progress: told of every step of a detection.

    Returns:
        The result; only `Check.passed` means that all is well.

    Raises:
        InputError: an option that cannot be used, or a baseline that cannot be compared.
        ModelError: the model cannot be found or used.
        RunError: a run is damaged or not finished.
    """
    if column is not None and documents is None:
        raise InputError(f"column is {shown(column)} without documents: pass documents, or leave column out")
    if fail_on not in list(FailOn):
        raise InputError(f"fail_on is {shown(fail_on)}: use {', '.join(FailOn)}")
    require_callable("progress", progress)
    max_tokens = whole_number("max_tokens", max_tokens, 0)
    if documents is not None:
        require_documents(documents, column)
    compared = None if baseline is None else open_run(baseline)
    found = _found(source, file_path("folder", folder), revision, progress)
    run, incomplete = found.run, gaps(found.run)
    if compared is not None:
        require_comparable(run, compared)
        incomplete += gaps(compared, "the baseline")
    judged = judge_tokens(
        run,
        FailOn(fail_on),
        max_tokens,
        None if compared is None else Baseline(compared),
        _place_of(run) if place is None else Place(*place),
    )
    scanned = None if documents is None else scan_for_check(run, documents, column, progress)
    if scanned is not None:
        incomplete += scanned.incomplete
    return Check(
        model=run.model_name,
        run=run.path,
        fail_on=FailOn(fail_on),
        max_tokens=max_tokens,
        counted=judged.counted,
        sticky=len(run.sticky),
        baseline=None if compared is None else compared.path,
        rules=(STICKY_TOKEN, *(() if scanned is None else scanned.rules)),
        findings=(*judged.findings, *(() if scanned is None else scanned.findings)),
        incomplete=tuple(incomplete),
        notes=(*found.notes, *remarks(run)),
        documents=None if scanned is None else scanned.checked,
    )


def _found(source: AnyModel | Run, runs: Path, revision: str | None, progress: ProgressCallback) -> FoundRun:
    if isinstance(source, Run):
        return FoundRun(source, [])
    if isinstance(source, (str, Path)) and is_run(source):
        return FoundRun(open_run(source), [])
    return run_of_model(source, runs, revision, progress)


def _place_of(run: Run) -> Place:
    table = run.path / TOKENS_FILE
    path = repository_path(table, repository_root(Path.cwd()))
    return Place() if path is None else Place(path, 1)


class ScannedDocuments(NamedTuple):
    """Documents as findings.

    Attributes:
        rules: what was looked for.
        findings: one per document, the worst first.
        incomplete: why not all documents could be searched.
        checked: how many documents were searched, and how many close the gate.
    """

    rules: tuple[Rule, ...]
    findings: list[Finding]
    incomplete: list[str]
    checked: CheckedDocuments


def require_documents(documents: DocumentSource, column: str | None) -> None:
    """Refuse missing documents before a run is made."""
    from stickytoken.scanning.reading.columns import Wanted
    from stickytoken.scanning.reading.opening import open_documents

    if isinstance(documents, (str, Path)):
        open_documents(documents, Wanted(column, None, None))


def scan_for_check(
    run: Run, documents: DocumentSource, column: str | None, progress: ProgressCallback
) -> ScannedDocuments:
    """Search documents; without a model, because effects change nothing about what closes the gate."""
    from stickytoken.scanning.findings import RULES, incomplete, scan_findings
    from stickytoken.scanning.scan import scan_documents

    scan = scan_documents(run, documents, column=column, progress=progress)
    findings = list(scan_findings(scan, repository_root(Path.cwd())))
    closing = sum(finding.level is Level.ERROR for finding in findings)
    gaps = incomplete(scan)
    if not scan.result.documents:
        gaps.append(f"there are no documents in {scan.record.documents}: pass the documents to be indexed")
    checked = CheckedDocuments(scan.record.documents, scan.result.documents, closing)
    return ScannedDocuments(RULES, findings, gaps, checked)
