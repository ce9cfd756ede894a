"""The files of a run's model: `find_run` compares them with model.json, to avoid loading the model."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.loading.resolution import Origin, resolve_model
from stickytoken.errors import RunError
from stickytoken.machine import digest
from stickytoken.measurement.resume import Record, package_versions

_MODEL_FILE = "model.json"
_MODEL_FILE_VERSION = 1
# Packages that load a model. Other versions of these packages may give other vectors from the same files.
_LOADING_PACKAGES = ("stickytoken", "torch", "transformers", "sentence-transformers", "tokenizers")
# Configuration files that refer to files outside the model's folder.
_FILES_WITH_REFERENCES = ("adapter_config.json", "router_config.json")
# Minimum age in nanoseconds of a file whose state is recorded. Some file systems store times with a
# resolution of two seconds, so a younger file could change again without a change in its times.
_MIN_AGE = 3_000_000_000


class ModelFilesRecord(Record):
    """model.json: the hash of a run's model files, if the model was loaded with default options."""

    schema_version: int
    files: str  # hash of all files
    versions: dict[str, str]  # versions of the packages that loaded the files
    encoder: dict[str, Any]  # identity of the encoder


class FileState(NamedTuple):
    """Properties of a file, at least one of which changes with any change to the file."""

    size: int  # bytes
    modified: int  # nanoseconds
    changed: int  # nanoseconds
    inode: int
    device: int


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model at one moment."""

    folder: Path
    states: Mapping[str, FileState]  # state of every file, keyed by relative path
    looked_at: int  # time at which the states were read, in nanoseconds since the epoch

    @property
    def settled(self) -> bool:
        """Whether any later change of a file will alter the file's state.

        Times of files have a limited resolution, so a file that was changed less than `_MIN_AGE` before
        `looked_at` may change again and keep the same times.
        """
        latest = (max(state.modified, state.changed) for state in self.states.values())
        return all(moment < self.looked_at - _MIN_AGE for moment in latest)

    def fingerprint(self) -> str | None:
        """Return a hash of all files; None if a file has changed since `looked_at` or cannot be read."""
        hashes = []
        for name in sorted(self.states):
            with suppress(OSError), (self.folder / name).open("rb") as stream:
                hashes.append([name, hashlib.file_digest(stream, "sha256").hexdigest()])
        unchanged = len(hashes) == len(self.states) and _file_states(self.folder) == self.states
        return digest(hashes) if unchanged else None


def look_at_model(name: str, revision: str | None = None) -> ModelFiles | None:
    """Return the files of a model; None if it is not a local folder, or needs files in other folders."""
    if names_endpoint(name):
        return None
    source = resolve_model(name, revision)
    folder = Path(source.location)
    if source.origin is Origin.HUB or not _is_self_contained(folder):
        return None
    looked_at = time.time_ns()
    states = _file_states(folder)
    return ModelFiles(folder, states, looked_at) if states else None


def record_model(path: Path, record: RunRecord, files: ModelFiles | None) -> None:
    """Write model.json into a run folder, unless the folder already has the same record.

    Nothing is written if the files of the model are unknown (``files`` is None) or may have changed since
    they were looked at, or if the run's own record does not identify its encoder. A `RunError` is ignored.
    """
    # If files are not settled, a later change of the files could go unnoticed.
    if files is None or not files.settled:
        return
    fingerprint = files.fingerprint()
    if fingerprint is None:  # a file has changed or cannot be read
        return
    model_record = _model_files_record(record, fingerprint)
    if model_record is not None and not is_model_of(path, record, fingerprint):
        with suppress(RunError):
            RunFolder(path).write_record(_MODEL_FILE, model_record)


def is_model_of(path: Path, record: RunRecord, fingerprint: str) -> bool:
    """Return whether the model of a run was loaded from files with the given hash."""
    model_record = _model_files_record(record, fingerprint)
    if model_record is None:
        return False
    with suppress(RunError):  # a damaged record is replaced
        return RunFolder(path).read_record(_MODEL_FILE, ModelFilesRecord) == model_record
    return False


def _model_files_record(record: RunRecord, fingerprint: str) -> ModelFilesRecord | None:
    encoder = record.identity_parts.get("encoder")
    if not isinstance(encoder, dict):
        return None
    versions = {name: version for name, version in package_versions().items() if name in _LOADING_PACKAGES}
    return ModelFilesRecord(
        schema_version=_MODEL_FILE_VERSION, files=fingerprint, versions=versions, encoder=encoder
    )


def _file_states(folder: Path) -> dict[str, FileState] | None:
    """Return the state of every file in a folder, keyed by relative path.

    Return None if the folder cannot be read completely, or contains a linked folder, a pipe or a device.
    """
    states: dict[str, FileState] = {}
    errors: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=errors.append, followlinks=False):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in [*names, *links]:
            path = Path(parent) / name
            try:
                state = path.stat()
            except OSError:
                return None
            if not stat.S_ISREG(state.st_mode):  # a linked folder, a pipe or a device
                return None
            states[str(path.relative_to(folder))] = FileState(
                state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev
            )
    return None if errors else states


def _is_self_contained(folder: Path) -> bool:
    for name in _FILES_WITH_REFERENCES:
        if next(folder.rglob(name), None) is not None:
            return False
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return True
    try:
        modules = json.loads(modules_file.read_text("utf-8"))
        if not all(_is_module_inside(module) for module in modules):
            return False
        configurations = folder.rglob("sentence_*_config.json")
        return all("name_or_path" not in path.read_text("utf-8") for path in configurations)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_module_inside(module: Mapping[str, Any]) -> bool:
    path = Path(str(module["path"]))
    is_known = str(module["type"]).startswith("sentence_transformers.")
    return is_known and not path.is_absolute() and ".." not in path.parts
