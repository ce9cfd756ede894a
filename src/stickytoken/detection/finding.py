"""Find the run of a model, or make one: the front door of `check` and `audit`, which take either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from stickytoken.data import load_sentences
from stickytoken.detection import detect
from stickytoken.detection.run import (
    Run,
    identify_model,
    is_run,
    is_same_model,
    load_for_documents,
    load_recorded,
    open_run,
)
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, is_behind_endpoint
from stickytoken.errors import InputError, RunError, reading
from stickytoken.loading import AnyModel
from stickytoken.machine import RUNS_FOLDER, digest
from stickytoken.measurement import resume, store
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.ray_engine import EngineChoice
from stickytoken.methods import SETTINGS_OF_METHOD
from stickytoken.methods.base import Scope
from stickytoken.settings import choose_insertion
from stickytoken.settings.profile import RuleSettings


class FoundRun(NamedTuple):
    """A run, and what was needed to find it.

    Attributes:
        run: the run.
        encoder: its model, compared with it, if it was loaded to find the run; None if the run was named.
        notes: one note for each run that was skipped, and on what was chosen for a run that nobody named.
    """

    run: Run
    encoder: Encoder | None
    notes: list[str]


def find_run(
    source: AnyModel | Run,
    runs: Path = RUNS_FOLDER,
    revision: str | None = None,
    progress: ProgressCallback = ignore_progress,
    engine: EngineChoice = "local",
) -> FoundRun:
    """Return the run that was passed, or the newest run of a model over its whole vocabulary.

    If the model has no such run, its sticky tokens are detected.

    Args:
        source: A run or its folder, or a model: anything that `load_encoder` takes.
        runs: For a model: the folder that holds its runs, or a run folder.
        revision: Branch, tag or commit of a model on the hub.
        progress: Called after every step of a detection.
        engine: Where a detection computes, as in `detect`.

    Raises:
        InputError: The model is behind an endpoint and has no run.
        ModelError: The model cannot be found or used.
        RunError: The run is damaged or not finished, or ``runs`` is a run folder of another model.
    """
    if isinstance(source, Run):
        return FoundRun(source, None, [])
    if isinstance(source, (str, Path)) and is_run(source):
        return FoundRun(open_run(source), None, [])
    candidates, notes = _whole_runs(runs)
    if isinstance(source, str) and names_endpoint(source):
        run, encoder = _open_newest_run_of_endpoint(source, runs, candidates)
        return FoundRun(run, encoder, [*notes, *note_choices(run)])
    progress(Progress("load", 0, 1))
    encoder = load_for_documents(source, revision=revision)
    progress(Progress("load", 1, 1))
    identity = identify_model(encoder)
    for path, record in candidates.items():
        if not is_same_model(record, identity):
            continue
        if path != runs and _has_other_thresholds(record):
            notes.append(
                f"skipped, because its thresholds are not the default ones (name it to use it): {path}"
            )
            continue
        _require_unchanged_server(encoder)
        run = open_run(path)
        return FoundRun(run, encoder, [*notes, *note_choices(run)])
    if is_behind_endpoint(encoder):  # the caller loaded it, and a detection would cost money
        raise _no_run_of_endpoint(encoder.name, runs)
    folder = _name_new_folder(encoder.name, identity.documents, runs)
    run = detect(encoder, out=folder, progress=progress, engine=engine)
    return FoundRun(run, encoder, notes)


def note_choices(run: Run) -> list[str]:
    """Return notes on the settings and the corpus of a run that are not the default."""
    notes = []
    loading = run.record.model.loading
    is_of_endpoint = loading is not None and loading.endpoint is not None
    settings_class = SETTINGS_OF_METHOD[run.record.method]
    # The default insertion depends on the model: one behind an endpoint reads only texts.
    defaults = resume.settings_values(choose_insertion(settings_class(), texts_only=is_of_endpoint))
    changed_settings = [
        f"{name} {value}"
        for name, value in run.record.settings.items()
        if name != "seed" and defaults.get(name, value) != value  # any seed is as good as the default one
    ]
    if changed_settings:
        notes.append(f"the run used non-default settings: {', '.join(changed_settings)}")
    if run.record.corpus.source != load_sentences().source:
        notes.append(f"the run used other texts than the packaged ones: {run.record.corpus.source}")
    return notes


def refuse_for_run(source: AnyModel | Run, **options: object) -> None:
    """Raise an InputError if an option that only a model can have was passed with a run; None was not."""
    is_named_run = isinstance(source, (str, Path)) and is_run(source)
    passed = [name for name, value in options.items() if value is not None]
    if passed and (isinstance(source, Run) or is_named_run):
        name = source.path if isinstance(source, Run) else source
        raise InputError(f"{name} is a run: leave out {' and '.join(passed)}, or pass a model in its place")


def _whole_runs(runs: Path) -> tuple[dict[Path, RunRecord], list[str]]:
    """Read all finished runs of profile that cover a whole vocabulary, whatever their model.

    ``runs`` is the folder that holds the run folders, or one of them.

    Returns:
        The records of the runs, keyed by folder, the newest first, and one note for each run that cannot be
        read.
    """
    with reading(f"the folder of runs {runs}", RunError):
        is_run_folder = RunFolder(runs).holds_run()
        paths = [runs] if is_run_folder else sorted(path.parent for path in runs.glob("*/run.json"))
    records = {}
    notes = []
    for path in paths:
        try:
            record = RunFolder(path).read_run()
        except RunError as error:
            notes.append(f"skipped: {error}")
            continue
        covers_vocabulary = record.scope is Scope.WHOLE and record.tokens == record.model.available
        if record.is_profile and record.result is not None and covers_vocabulary:
            records[path] = record
    newest_first = sorted(records, key=lambda path: records[path].started, reverse=True)
    return {path: records[path] for path in newest_first}, notes


def _has_other_thresholds(record: RunRecord) -> bool:
    # With a higher threshold, a sticky token would count as benign though nobody asked for this now.
    return any(record.settings.get(name) != default for name, default in asdict(RuleSettings()).items())


def _open_newest_run_of_endpoint(
    model: str, runs: Path, candidates: Mapping[Path, RunRecord]
) -> tuple[Run, Encoder]:
    for path, record in candidates.items():  # the newest first
        if record.model.name != model or (path != runs and _has_other_thresholds(record)):
            continue
        # The options of the endpoint are known from the run only.
        encoder = load_recorded(record)
        if is_same_model(record, identify_model(encoder)):
            _require_unchanged_server(encoder)
            return open_run(path), encoder
    raise _no_run_of_endpoint(model, runs)


def _require_unchanged_server(encoder: Encoder) -> None:
    # The identity of a model behind an endpoint comes from cached answers. The server may give others by now.
    if isinstance(encoder, EndpointEncoder):
        encoder.require_same_model()


def _no_run_of_endpoint(model: str, runs: Path) -> InputError:
    return InputError(
        f"{runs} has no run of {model} over its whole vocabulary with the default thresholds: run "
        "`stickytoken detect` first, which shows the cost of the requests, or pass the folder of a run, "
        "such as one with candidates, instead of the model"
    )


def _name_new_folder(model: str, identity: EncoderIdentity, runs: Path) -> Path | None:
    """The name depends only on model and version, so that the next call continues an interrupted run."""
    if RunFolder(runs).holds_run():
        # The caller has found that this run cannot be used.
        raise RunError(
            f"the run in {runs} measured a model other than {model!r}, or does not cover the whole "
            "vocabulary with the default method: pass the folder that holds your runs, or pass this run "
            "instead of the model"
        )
    if runs == RUNS_FOLDER:
        return None  # `detect` chooses it
    folder_identity = digest([asdict(identity), resume.package_versions()["stickytoken"]])
    return runs / store.default_folder(model, "check", folder_identity).name
