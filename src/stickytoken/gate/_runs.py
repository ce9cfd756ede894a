"""Find a run that provably belongs to a model, or make one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from stickytoken.detection.detect import detect
from stickytoken.detection.model_files import is_model_of, look_at_model, record_model
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import RunFolder
from stickytoken.detection.run_model import load_recorded_endpoint, model_difference, recorded_loading
from stickytoken.detection.schema import RunRecord
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.endpoint.options import EndpointOptions, names_endpoint
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.hashing import digest
from stickytoken.measurement.default_folder import default_folder
from stickytoken.measurement.environment import package_versions
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.methods.registry import choose_method

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

    Args:
        model: anything that `load_encoder` takes.
        runs: a run folder, or the folder that holds them.
        revision: branch, tag or commit on the hub.
        progress: told of every step of a detection.
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
    """List the finished runs of the default method over a whole vocabulary, newest first.

    Returns:
        The runs, and a note on each one that could not be read.
    """
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
