"""Check whether a model can ship: its sticky tokens against a threshold or a baseline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stickytoken.data.corpora import LARGEST_UNKNOWN
from stickytoken.detection import run as runs_of
from stickytoken.detection.detect import detect
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.endpoint.options import EndpointOptions, names_endpoint
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.errors import InputError, RunError
from stickytoken.findings import Level, repository_path, repository_root
from stickytoken.gate._tokens import (
    STICKY_TOKEN,
    Check,
    CheckedDocuments,
    FailOn,
    judge_tokens,
    require_comparable,
)
from stickytoken.machine import digest
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.resume import package_versions
from stickytoken.measurement.store import TOKENS_FILE, default_folder
from stickytoken.methods.base import adjusted_defaults
from stickytoken.methods.registry import choose_method
from stickytoken.validation import file_path, require_callable, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.data.documents import DocumentSource


DEFAULT_FOLDER = Path("runs")


def run_of_model(
    model: AnyModel, runs: Path, revision: str | None, progress: ProgressCallback
) -> tuple[Run, list[str]]:
    """Return the newest finished run of a model over its whole vocabulary, and notes; without one, detect.

    A run is taken only if its model is proven to be this one: by its files if they were recorded, or by its
    identity.
    """
    candidates, notes = _candidates(runs)
    if isinstance(model, str) and names_endpoint(model):
        # The same model must still answer there.
        for path, record in candidates:
            if record.model.name == model:
                loading = runs_of.recorded_loading(record)
                found = runs_of.load_recorded_endpoint(model, loading, EndpointOptions())
                if (
                    isinstance(found, EndpointEncoder)
                    and runs_of.model_difference(record, found.identity) == []
                ):
                    found.endpoint.require_same_model()
                    return open_run(path), notes
        raise InputError(
            f"{runs} has no run of {model} over its whole vocabulary: detect it first, which shows what it "
            "costs"
        )
    files = runs_of.look_at_model(str(model), revision) if isinstance(model, (str, Path)) else None
    if candidates and files is not None and (fingerprint := files.fingerprint()) is not None:
        for path, record in candidates:
            if runs_of.is_model_of(path, record, fingerprint):
                return open_run(path), notes
    progress(Progress("load", 0, 1))
    # The options of names fit no object, which load_encoder says best itself.
    encoder = load_encoder(model) if revision is None else load_encoder(model, revision=revision)  # type: ignore[arg-type]
    progress(Progress("load", 1, 1))
    for path, record in candidates:
        if runs_of.model_difference(record, encoder.identity) == []:
            runs_of.record_model(path, record, files)
            return open_run(path), notes
    if RunFolder(runs).holds_run():
        raise RunError(
            f"the run in {runs} is of a different model than {encoder.name!r}, or not a whole run of the "
            "default method: pass the folder of your runs, or check the run itself"
        )
    out = None
    if runs != DEFAULT_FOLDER:
        identity = digest([asdict(encoder.identity), package_versions()["stickytoken"]])
        out = runs / default_folder(encoder.name, "check", identity).name
    run = detect(encoder, out=out, progress=progress)
    runs_of.record_model(run.path, run.record, files)
    return run, notes


def _candidates(runs: Path) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    """List the finished runs of the default method over a whole vocabulary, newest first."""
    method = choose_method(None, None, pairs_given=False).entry.name
    try:
        whole_folder = RunFolder(runs).holds_run()
        paths = [runs] if whole_folder else sorted(path.parent for path in runs.glob("*/run.json"))
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
            found.append((path, record))
    return sorted(found, key=lambda candidate: candidate[1].started, reverse=True), notes


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
    needed = [*(["lift"] if run.method.measures_lift else []), "verdict"]
    if run.method.judges_every_token and (lacking := max(tokens[name].is_null().sum() for name in needed)):
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
    defaults = adjusted_defaults(run.method.settings(), loading is not None and loading.endpoint is not None)
    changed = []
    for name, value in run.record.settings.items():
        default = getattr(defaults, name, value)
        if name != "seed" and (list(default) if isinstance(default, tuple) else default) != value:
            changed.append(f"{name} {value}")
    if changed:
        found.append(f"the run used non-default settings: {', '.join(changed)}")
    return found


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
    if isinstance(documents, (str, Path)):
        from stickytoken.data.documents import Wanted, open_documents

        open_documents(documents, Wanted(column, None, None))  # refused before a run is made
    compared = None if baseline is None else open_run(baseline)
    folder = file_path("folder", folder)
    notes: list[str] = []
    if isinstance(source, Run):
        run = source
    elif isinstance(source, (str, Path)) and runs_of.is_run(source):
        run = open_run(source)
    else:
        run, notes = run_of_model(source, folder, revision, progress)
    incomplete = gaps(run)
    if compared is not None:
        require_comparable(run, compared)
        incomplete += gaps(compared, "the baseline")
    root = repository_root(Path.cwd())
    table = repository_path(run.path / TOKENS_FILE, root)
    where = place or ((None, None) if table is None else (table, 1))
    findings, counted = judge_tokens(run, FailOn(fail_on), max_tokens, compared, where)
    rules, checked = [STICKY_TOKEN], None
    if documents is not None:
        from stickytoken.scanning import results
        from stickytoken.scanning.scan import scan_documents

        # Without a model, because effects change nothing about what closes the gate.
        scan = scan_documents(run, documents, column=column, progress=progress)
        found = list(results.scan_findings(scan, root))
        closing = sum(finding.level is Level.ERROR for finding in found)
        checked = CheckedDocuments(scan.record.documents, scan.result.documents, closing)
        incomplete += results.incomplete(scan)
        rules += results.RULES
        findings += found
    return Check(
        model=run.model_name,
        run=run.path,
        fail_on=FailOn(fail_on),
        max_tokens=max_tokens,
        counted=counted,
        sticky=len(run.sticky),
        baseline=None if compared is None else compared.path,
        rules=tuple(rules),
        findings=tuple(findings),
        incomplete=tuple(incomplete),
        notes=(*notes, *remarks(run)),
        documents=checked,
    )
