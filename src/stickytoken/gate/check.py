"""Check whether a model can ship: its sticky tokens against a threshold or a baseline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stickytoken.corpora.choice import LARGEST_UNKNOWN
from stickytoken.detection.detect import detect
from stickytoken.detection.model_files import (
    is_model_of,
    load_recorded_endpoint,
    look_at_model,
    model_difference,
    record_model,
    recorded_loading,
)
from stickytoken.detection.run import Run, is_run, open_run
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.endpoint.options import EndpointOptions, names_endpoint
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.findings import Finding, Level, Rule, repository_path, repository_root
from stickytoken.gate._tokens import (
    STICKY_TOKEN,
    Baseline,
    Check,
    CheckedDocuments,
    FailOn,
    Place,
    judge_tokens,
    require_comparable,
)
from stickytoken.machine import digest
from stickytoken.measurement.atomic import default_folder
from stickytoken.measurement.resume import package_versions
from stickytoken.measurement.stage import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.store import TOKENS_FILE
from stickytoken.methods.job import suited
from stickytoken.methods.registry import choose_method
from stickytoken.validation import file_path, require_callable, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.scanning.formats import DocumentSource


DEFAULT_FOLDER = Path("runs")


class FoundRun(NamedTuple):
    """The run of a model.

    Attributes:
        run: the run.
        notes: what a reader should know about how it was found.
    """

    run: Run
    notes: list[str]


class _Candidate(NamedTuple):
    path: Path
    record: RunRecord


def run_of_model(model: AnyModel, runs: Path, revision: str | None, progress: ProgressCallback) -> FoundRun:
    """Return the newest finished run of a model over its whole vocabulary; without one, detect.

    A run is taken only if its model is proven to be this one: by the files of the model if the run recorded
    them, and otherwise by loading the model and comparing identities.
    """
    candidates, notes = _candidates(runs)
    if isinstance(model, str) and names_endpoint(model):
        return FoundRun(_run_of_endpoint(model, runs, candidates), notes)
    named = isinstance(model, (str, Path))
    files = look_at_model(str(model), revision) if named else None
    if candidates and files is not None and (fingerprint := files.fingerprint()) is not None:
        for candidate in candidates:
            if is_model_of(candidate.path, candidate.record, fingerprint):
                return FoundRun(open_run(candidate.path), notes)
    progress(Progress("load", 0, 1))
    encoder = _loaded(model, revision)
    progress(Progress("load", 1, 1))
    identity = encoder.identity
    for candidate in candidates:
        if model_difference(candidate.record, identity) == []:
            record_model(candidate.path, candidate.record, files)
            return FoundRun(open_run(candidate.path), notes)
    if RunFolder(runs).holds_run():
        raise RunError(
            f"the run in {runs} is of a different model than {encoder.name!r}, or not a whole run of the "
            "default method: pass the folder of your runs, or check the run itself"
        )
    run = detect(encoder, out=_folder_of(encoder, runs), progress=progress)
    record_model(run.path, run.record, files)
    return FoundRun(run, notes)


def _run_of_endpoint(name: str, runs: Path, candidates: list[_Candidate]) -> Run:
    """Open the newest run of a model behind an endpoint, if the same model still answers there."""
    for path, record in candidates:
        if record.model.name == name:
            encoder = load_recorded_endpoint(name, recorded_loading(record), EndpointOptions())
            if isinstance(encoder, EndpointEncoder) and model_difference(record, encoder.identity) == []:
                encoder.endpoint.require_same_model()
                return open_run(path)
    raise InputError(
        f"{runs} has no run of {name} over its whole vocabulary: detect it first, which shows what it costs"
    )


def _loaded(model: AnyModel, revision: str | None) -> Encoder:
    # The options of names fit no object, which load_encoder says best itself.
    return load_encoder(model) if revision is None else load_encoder(model, revision=revision)  # type: ignore[arg-type]


def _candidates(runs: Path) -> tuple[list[_Candidate], list[str]]:
    """List the finished runs of the default method over a whole vocabulary, newest first."""
    method = choose_method(None, None, pairs_given=False).entry.name
    folder = RunFolder(runs)
    try:
        paths = [runs] if folder.holds_run() else sorted(path.parent for path in runs.glob("*/run.json"))
    except OSError as error:
        raise RunError(f"the folder of runs {runs} cannot be read: {error.strerror or error}") from error
    found, notes = [], []
    for path in paths:
        try:
            record = RunFolder(path).read_run()
        except RunError as error:
            notes.append(f"skipped: {error}")
            continue
        whole = record.identity_parts.get("tokens") is None and record.tokens == record.model.available
        if record.method == method and record.result is not None and whole:
            found.append(_Candidate(path, record))
    return sorted(found, key=lambda candidate: candidate.record.started, reverse=True), notes


def _folder_of(encoder: Encoder, runs: Path) -> Path | None:
    """Return where a run that is missing goes; None is the default folder of detections."""
    if runs == DEFAULT_FOLDER:
        return None
    identity = digest([asdict(encoder.identity), package_versions()["stickytoken"]])
    return runs / default_folder(encoder.name, "check", identity).name


def gaps(run: Run, whose: str = "the run") -> list[str]:
    """List the reasons why a run does not cover the whole vocabulary."""
    found = []
    tokens, record = run.tokens, run.record
    if record.identity_parts.get("tokens") is not None or record.tokens < run.available:
        found.append(
            f"{whose} in {run.path} covered {record.tokens:,} of {run.available:,} available tokens: "
            "detect without --sample and --tokens"
        )
    if len(tokens) != record.tokens or tokens["token_id"].n_unique() != len(tokens):
        found.append(
            f"{run.path} has {len(tokens):,} rows in tokens.parquet for {record.tokens:,} tokens: delete the "
            "folder and detect again"
        )
    if len(run.sticky) != run.result.sticky:
        found.append(
            f"{run.path} has {len(run.sticky):,} sticky tokens in tokens.parquet and "
            f"{run.result.sticky:,} in run.json: delete the folder and detect again"
        )
    unmeasured = tokens["lift"].is_null().sum() if run.method.judges_every_token else 0
    undecided = tokens["verdict"].is_null().sum() if run.method.judges_every_token else 0
    if lacking := max(unmeasured, undecided):
        found.append(
            f"{whose} in {run.path} has no verdict on {lacking:,} of {len(tokens):,} tokens: too few texts "
            f"of {record.corpus.source} are unrelated; use more sentences, on more varied subjects"
        )
    verdicts = {verdict.value for verdict in run.method.verdicts}
    unknown = tokens.filter(pl.col("verdict").is_not_null() & ~pl.col("verdict").is_in(verdicts))
    if len(unknown):
        found.append(
            f"{run.path} has verdicts that the method {record.method} does not give: delete the folder and "
            "detect again"
        )
    if (record.corpus.unknown or 0) > LARGEST_UNKNOWN:
        found.append(
            f"the model cannot read {record.corpus.unknown:.0%} of {record.corpus.source}: detect with "
            "sentences in a language that it reads"
        )
    return found


def remarks(run: Run) -> list[str]:
    """List what a reader should know about a sufficient run."""
    found = list(run.method.notes(run))
    loading = run.record.model.loading
    defaults = suited(run.method.settings(), loading is not None and loading.endpoint is not None)
    changed = {
        name: value
        for name, value in run.record.settings.items()
        if name != "seed" and _plain(getattr(defaults, name, value)) != _plain(value)
    }
    if changed:
        listed = ", ".join(f"{name} {value}" for name, value in changed.items())
        found.append(f"the run used non-default settings: {listed}")
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


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
    from stickytoken.scanning.documents import Wanted
    from stickytoken.scanning.formats import open_documents

    if isinstance(documents, (str, Path)):
        open_documents(documents, Wanted(column, None, None))


def scan_for_check(
    run: Run, documents: DocumentSource, column: str | None, progress: ProgressCallback
) -> ScannedDocuments:
    """Search documents; without a model, because effects change nothing about what closes the gate."""
    from stickytoken.scanning.results import RULES, incomplete, scan_findings
    from stickytoken.scanning.scan import scan_documents

    scan = scan_documents(run, documents, column=column, progress=progress)
    findings = list(scan_findings(scan, repository_root(Path.cwd())))
    closing = sum(finding.level is Level.ERROR for finding in findings)
    gaps = incomplete(scan)
    if not scan.result.documents:
        gaps.append(f"there are no documents in {scan.record.documents}: pass the documents to be indexed")
    checked = CheckedDocuments(scan.record.documents, scan.result.documents, closing)
    return ScannedDocuments(RULES, findings, gaps, checked)
