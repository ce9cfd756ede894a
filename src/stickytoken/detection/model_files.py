"""Recognise the model of a run by its files, without loading it.

The identity of a run's model is a hash of what is in memory, and loading a model takes seconds. A run
therefore also keeps a hash of the files that its model was loaded from. The same files give the same model as
long as the libraries that read them are the same; if either differs, or if there is any doubt, the model is
loaded and identified as usual.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stickytoken.detection.run import Run
from stickytoken.detection.run_folder import EndpointRecord, LoadingRecord, RunFolder, RunRecord
from stickytoken.encoders.endpoint.options import EndpointOptions, names_endpoint
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.encoders.loading.resolution import Origin, resolve_model
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, Prompting
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.machine import digest
from stickytoken.measurement.resume import MeasurementRecord, Record, differences, package_versions
from stickytoken.methods.job import MethodSettings

_FILE = "model.json"
_VERSION = 1
_READERS = ("stickytoken", "torch", "transformers", "sentence-transformers", "tokenizers")
_POINTING_ELSEWHERE = ("adapter_config.json", "router_config.json")
# Two states of a file with the same times cannot be told apart, and some file systems count in steps of two
# seconds. Files this old when they were first looked at cannot have changed unseen since.
_SETTLED = 3_000_000_000


class ModelFilesRecord(Record):
    """model.json: the files that the model of a run was loaded from, with nothing but its name."""

    schema_version: int
    files: str
    versions: dict[str, str]
    encoder: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model as they were at one moment.

    Attributes:
        folder: where they lie.
        states: size, times and place on the disk of every file, by relative path.
        looked_at: the moment, in nanoseconds.
    """

    folder: Path
    states: Mapping[str, tuple[int, ...]]
    looked_at: int

    @property
    def settled(self) -> bool:
        """Whether a later change of a file would be seen in its times."""
        return all(max(state[1:3]) < self.looked_at - _SETTLED for state in self.states.values())

    def fingerprint(self) -> str | None:
        """Return the sha256 of names and contents; None if a file has changed since it was looked at."""
        found = []
        for name in sorted(self.states):
            with suppress(OSError), (self.folder / name).open("rb") as stream:
                found.append([name, hashlib.file_digest(stream, "sha256").hexdigest()])
        unchanged = len(found) == len(self.states) and _states(self.folder) == self.states
        return digest(found) if unchanged else None


def look_at_model(name: str, revision: str | None = None) -> ModelFiles | None:
    """Inspect the files of a model; None if they are not on this machine, or not all in its folder."""
    if names_endpoint(name):
        return None
    source = resolve_model(name, revision)
    folder = Path(source.location)
    if source.origin is Origin.HUB or not _is_self_contained(folder):
        return None
    looked_at = time.time_ns()
    states = _states(folder)
    return ModelFiles(folder, states, looked_at) if states else None


def record_model(path: Path, record: RunRecord, files: ModelFiles | None) -> None:
    """Record which files the model of a run was loaded from.

    Nothing is written if the files may have changed since they were looked at, or the folder cannot be
    written: the record only saves time.
    """
    if files is None or not files.settled:
        return
    encoder, fingerprint = record.identity_parts.get("encoder"), files.fingerprint()
    if fingerprint is None or not isinstance(encoder, dict):
        return
    expected = _expected(encoder, fingerprint)
    if _read(path) != expected:
        with suppress(RunError):
            RunFolder(path).write_record(_FILE, expected)


def is_model_of(path: Path, record: RunRecord, fingerprint: str) -> bool:
    """Whether files with this fingerprint are proven to give the model of a run."""
    encoder = record.identity_parts.get("encoder")
    return isinstance(encoder, dict) and _read(path) == _expected(encoder, fingerprint)


def _expected(encoder: dict[str, Any], fingerprint: str) -> ModelFilesRecord:
    versions = {name: version for name, version in package_versions().items() if name in _READERS}
    return ModelFilesRecord(schema_version=_VERSION, files=fingerprint, versions=versions, encoder=encoder)


def _read(path: Path) -> ModelFilesRecord | None:
    with suppress(RunError):  # a damaged record is replaced
        return RunFolder(path).read_record(_FILE, ModelFilesRecord)
    return None


def _states(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Return the state of every file below a folder; None if something cannot be looked at."""
    try:
        return {
            str(path.relative_to(folder)): (
                state.st_size,
                state.st_mtime_ns,
                state.st_ctime_ns,
                state.st_ino,
                state.st_dev,
            )
            for path, state in _walk(folder)
        }
    except OSError:
        return None


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=False):
        for name in [*names, *(each for each in folders if (Path(parent) / each).is_symlink())]:
            state = (Path(parent) / name).stat()
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"{name} is neither a file nor a folder")
            yield Path(parent) / name, state


def _raise(error: OSError) -> None:
    raise error


def _is_self_contained(folder: Path) -> bool:
    """Whether all that is loaded for a model lies in its folder."""
    if any(next(folder.rglob(name), None) is not None for name in _POINTING_ELSEWHERE):
        return False
    if not (folder / "modules.json").is_file():
        return True
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
        return all(
            str(module["type"]).startswith("sentence_transformers.") and _is_inside(str(module["path"]))
            for module in modules
        ) and all(
            "name_or_path" not in text.read_text("utf-8") for text in folder.rglob("sentence_*_config.json")
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_inside(path: str) -> bool:
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def model_difference(record: MeasurementRecord, identity: EncoderIdentity) -> list[str] | None:
    """Name the parts in which a model's identity differs from that of a measured model."""
    recorded = record.identity_parts.get("encoder")
    return differences(asdict(identity), recorded) if isinstance(recorded, dict) else None


def require_same_model(run: Run, encoder: Encoder) -> None:
    """Refuse a model that is not the model of a run."""
    different = model_difference(run.record, encoder.identity)
    if different is None:
        raise RunError(f"{run.path} does not record its model: run the detection again")
    if different:
        raise RunError(
            f"the run in {run.path} was made with another model than {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )


def recorded_loading(run: RunRecord) -> LoadingRecord:
    """Return how the run's model was loaded; of a model object, its prompt and precision are known."""
    if run.model.loading is not None:
        return run.model.loading
    known = run.identity_parts.get("encoder", {})
    return LoadingRecord(**{name: known[name] for name in ("dtype", "prompt") if name in known})


def encoder_for(model: AnyModel | None, run: Run | None, purpose: str) -> Encoder:
    """Load the model that the caller passed, or else the model of the run, as the run loaded it."""
    if model is None and run is None:
        raise InputError(f"{purpose} needs a model or a run: pass a model's name, folder or object, or run=")
    if run is None:
        return load_encoder(model)  # type: ignore[arg-type]
    encoder = _of_run(run) if model is None else load_encoder(model)
    require_same_model(run, encoder)
    return encoder


def _of_run(run: Run) -> Encoder:
    recorded = recorded_loading(run.record)
    prompting = Prompting(**recorded.prompting())
    try:
        if recorded.endpoint is not None:
            return load_recorded_endpoint(run.record.model.name, recorded, EndpointOptions())
        return load_encoder(
            run.record.model.name, prompt=prompting, dtype=recorded.dtype, revision=recorded.revision
        )
    except ModelError as error:
        raise ModelError(f"the model of {run.path}: {error} (if it has moved, pass it as encoder)") from error


def load_recorded_endpoint(name: str, recorded: LoadingRecord, options: EndpointOptions) -> Encoder:
    """Load the model behind an endpoint of a run."""
    known = recorded.endpoint or EndpointRecord()
    return load_encoder(
        name,
        prompt=recorded.prompt,
        max_length=known.max_length,
        tokenizer=known.tokenizer,
        candidates=known.candidates,
        endpoint=replace(
            options,
            dimensions=options.dimensions or known.dimensions,
            key_variable=options.key_variable or known.key_variable,
        ),
    )


def restored_settings(run: Run) -> MethodSettings:
    """Return the settings of a run."""
    try:
        return run.settings.restored()
    except (TypeError, InputError) as error:
        raise RunError(f"the settings in {run.path} cannot be used: {error}") from error


def worst_tokens(run: Run, count: int) -> list[int]:
    """Return the ids of the sticky tokens of a run, the worst first."""
    found: list[int] = run.sticky["token_id"].to_list()
    if not found:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to look at")
    return found[:count]
