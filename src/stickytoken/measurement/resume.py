"""Begin, continue or open a measurement, such as a run, a scan or an audit."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from stickytoken.errors import KEPT_NOTE, RunError
from stickytoken.measurement.store import (
    IDENTITY_FILE,
    ResultFolder,
    command_of,
    require_writable,
)
from stickytoken.version import __version__

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from stickytoken.encoders.protocol import EncoderIdentity

IDENTITY_SCHEMA_VERSION = 1


def settings_values(settings: DataclassInstance) -> dict[str, Any]:
    """Convert settings to values that JSON can represent."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return values


def identity_of(
    version: int, encoder: EncoderIdentity, settings: DataclassInstance, **inputs: Any
) -> dict[str, Any]:
    """Return everything that can change the results of a measurement by more than rounding errors.

    Batch size, device, engine, and the names and paths of files are not included, because they cannot change
    the results by more than rounding errors.
    """
    return {"version": version, "encoder": asdict(encoder), **inputs, "settings": settings_values(settings)}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the sorted keys whose values differ. The keys of nested mappings are joined by dots."""
    keys: list[str] = []
    for key in sorted({*ours, *theirs}):
        our_value = ours.get(key)
        their_value = theirs.get(key)
        if isinstance(our_value, Mapping) and isinstance(their_value, Mapping):
            keys += differences(our_value, their_value, f"{prefix}{key}.")
        elif our_value != their_value:
            keys.append(f"{prefix}{key}")
    return keys


def refuse_different(
    path: Path, kind: str, requested: Mapping[str, Any], present: Mapping[str, Any]
) -> NoReturn:
    """Raise a RunError that says in what the measurement in a folder differs from the requested one.

    Args:
        path: the folder.
        kind: name of the kind of measurement, such as ``run``.
        requested: the identity parts of the requested measurement.
        present: the identity parts of the measurement in the folder.
    """
    # `differences` may find nothing, because it treats a missing part and a part that is None as equal.
    differing = ", ".join(differences(requested, present)) or "its identity"
    raise RunError(f"{path} contains a different {kind} (it differs in {differing}): choose another folder")


class Record(BaseModel):
    """A record that is stored as JSON. Records are immutable, and unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasurementRecord(Record):
    """The fields that the records of all measurements have in common.

    Attributes:
        schema_version: format version of the measurement's folder.
        identity: hash of ``identity_parts``.
        identity_parts: everything that can change the results of the measurement; see `identity_of`.
    """

    schema_version: int
    identity: str
    identity_parts: dict[str, Any]

    @property
    def prompts(self) -> dict[str, str] | None:
        """The prompts that were put before documents and before queries; None if the record does not say."""
        encoder_of_documents = self.identity_parts.get("encoder")
        if not isinstance(encoder_of_documents, dict):
            return None
        # The encoder of queries is recorded only if queries are encoded in another way than documents.
        encoder_of_queries = self.identity_parts.get("queries", encoder_of_documents)
        return {"document": encoder_of_documents["prompt"], "query": encoder_of_queries["prompt"]}

    def continued_by(self, later: MeasurementRecord) -> Self:
        """Return this record of an unfinished measurement, continued with the facts of a later session.

        The record has a result if a file of a finished measurement was deleted. All is measured again, so the
        result is taken out.

        A version, device or fact on the hardware that has changed is recorded with its earlier and its later
        value, because each has computed a part of the results: ``"2.8.0, later 2.9.0"``.
        """
        earlier_values = dict(self)
        later_values = dict(later)
        changes: dict[str, Any] = {}
        if "result" in earlier_values:
            changes["result"] = None
        # Not every kind of measurement records all three.
        for name in earlier_values.keys() & later_values.keys() & {"versions", "hardware", "device"}:
            earlier = earlier_values[name]
            if isinstance(earlier, str):
                changes[name] = join_sessions(earlier, later_values[name])
                continue
            changes[name] = _join_facts(earlier, later_values[name])
        return self.model_copy(update=changes)


_LATER = ", later "


def _join_facts(earlier: Mapping[str, str], later: Mapping[str, str]) -> dict[str, str]:
    """Join what two sessions have recorded of versions or of the hardware.

    A fact may be known of one of them only, such as the name of a GPU. Then the other's device stands for it.
    """
    without = [session.get("device", "none") for session in (earlier, later)]
    return {
        fact: join_sessions(earlier.get(fact, without[0]), later.get(fact, without[1]))
        for fact in {**earlier, **later}
    }


def join_sessions(earlier: str, later: str) -> str:
    """Return a fact that earlier sessions have recorded, and behind it that of a later one, if it differs."""
    return earlier if later in earlier.split(_LATER) else f"{earlier}{_LATER}{later}"


R = TypeVar("R", bound=MeasurementRecord)
M = TypeVar("M")


class IdentityRecord(MeasurementRecord):
    """The identity of the measurement in a folder, which is written before the first shard."""

    schema_version: int = IDENTITY_SCHEMA_VERSION
    kind: str


def read_identity(folder: ResultFolder) -> IdentityRecord | None:
    """Return the identity of the measurement in a folder, or None if it has none."""
    any_command = "stickytoken"
    return folder.read_record(IDENTITY_FILE, IdentityRecord, IDENTITY_SCHEMA_VERSION, any_command)


@dataclass(frozen=True)
class MeasurementKind(Generic[R]):
    """A kind of measurement, with the functions that are needed to continue such a measurement.

    Attributes:
        name: name of the kind in messages, such as ``run``.
        file: name of the file with the measurement's record.
        read: reads the record from a folder that contains ``file``. Returns None if the measurement cannot be
            continued and may be replaced.
        finished: returns whether the measurement is finished.
    """

    name: str
    file: str
    read: Callable[[ResultFolder], R | None]
    finished: Callable[[R, ResultFolder], bool]


@dataclass(frozen=True)
class Resumed(Generic[R]):
    """A measurement in a locked folder.

    Attributes:
        folder: the folder.
        record: the record in the folder, continued by this session if it isn't finished; or the record that
            was passed to `resumed` if the folder has none.
        finished: whether the measurement is finished.
        kind: the kind of measurement.
    """

    folder: ResultFolder
    record: R
    finished: bool
    kind: MeasurementKind[R]

    def prepare(self, record: R | None = None) -> None:
        """Say what `ResultFolder.begin` writes: the identity, unless the folder has it, and a record.

        Nothing is written yet. A runner calls ``begin`` before its first shard, so that what a user passed
        can be refused until then without leaving files.

        The identity is that of `self.record`, because ``record`` may be None. The identity never changes
        during a measurement, so ``record`` must have the same identity.

        Args:
            record: the record of the unfinished measurement, without results. If None, only `finish` writes a
                record.
        """
        first_records: dict[str, BaseModel] = {}
        if not (self.folder.path / IDENTITY_FILE).is_file():
            first_records[IDENTITY_FILE] = IdentityRecord(
                kind=self.kind.name,
                identity=self.record.identity,
                identity_parts=self.record.identity_parts,
            )
        if record is not None:
            first_records[self.kind.file] = record
        self.folder.prepare(first_records)

    def finish(self, record: R) -> None:
        """Write the record of the finished measurement, and stop recording the time."""
        self.folder.write_record(self.kind.file, record)
        self.folder.end_session()


@contextmanager
def resumed(folder: ResultFolder, kind: MeasurementKind[R], record: R) -> Iterator[Resumed[R]]:
    """Lock a folder in a ``with`` block, and yield the measurement in the folder.

    If the folder has no record, the measurement is new and has the given record.

    Raises:
        RunError: the folder is locked, or it contains another measurement or other files.
    """
    require_vacant(folder, kind)  # before locking, which creates the folder and a file in it
    with folder.locked():
        earlier: R | None = None
        present: MeasurementRecord | None
        if (folder.path / kind.file).is_file():
            earlier = kind.read(folder)
            present = earlier
        else:  # an interrupted measurement may have left only its identity
            present = read_identity(folder)
        if present is not None and present.identity != record.identity:
            refuse_different(folder.path, kind.name, record.identity_parts, present.identity_parts)
        finished = earlier is not None and kind.finished(earlier, folder)
        if earlier is not None:
            record = earlier if finished else earlier.continued_by(record)
        try:
            yield Resumed(folder, record, finished, kind)
        except BaseException as error:  # Ctrl-C too
            shards = folder.shard_count()
            if shards:
                error.add_note(f"{KEPT_NOTE}: {shards:,} in {folder.path}")
            raise


def read_present(folder: ResultFolder, kind: MeasurementKind[R], called: str) -> R:
    """Return the record of the measurement in a folder; raise a RunError if there is none.

    ``called`` is the noun for the measurement in messages, such as ``audit``.
    """
    record = kind.read(folder) if folder.exists() else None
    if record is None:
        raise RunError(f"there is no {called} in {str(folder.path)!r}: it has no {kind.file}")
    return record


def require_result(result: M | None, folder: ResultFolder, called: str) -> M:
    """Return the result of a measurement; raise a RunError if it is None: the measurement isn't finished."""
    if result is None:
        raise RunError(
            f"the {called} in {folder.path} is not finished: run {command_of(folder.path)} again to "
            "continue it"
        )
    return result


def measurements_in(
    run: Path, pattern: str, open_: Callable[[Path], M], called: str, started: Callable[[M], str]
) -> tuple[tuple[M, ...], tuple[str, ...]]:
    """Open all measurements of one kind in a run folder.

    Args:
        run: the run folder.
        pattern: glob pattern of the record files, relative to the run folder.
        open_: opens the measurement in a folder.
        called: noun for a measurement in messages, such as ``A scan``.
        started: returns the start time of a measurement, as text that can be sorted.

    Returns:
        The opened measurements, newest first, and a message for each measurement that cannot be read.
    """
    records: list[M] = []
    messages: list[str] = []
    for file in sorted(run.glob(pattern)):
        try:
            records.append(open_(file.parent))
        except RunError as error:
            messages.append(f"{called} is left out: {error}.")
    return tuple(sorted(records, key=started, reverse=True)), tuple(messages)


def require_place(path: Path, kind: MeasurementKind[Any]) -> None:
    """Raise a RunError if a measurement cannot be written to a folder. Called before anything slow.

    The folder must not be read-only, contain something else, or be in use by another process.
    """
    require_writable(path)
    folder = ResultFolder(path)
    require_vacant(folder, kind)
    folder.require_unlocked()


def require_vacant(folder: ResultFolder, kind: MeasurementKind[Any]) -> None:
    """Raise a RunError if a folder contains anything other than a measurement of this kind."""
    is_foreign = folder.holds_other_files(kind.file)
    if not is_foreign and not (folder.path / kind.file).is_file():
        # An interrupted measurement may have left only its identity.
        present = read_identity(folder)
        is_foreign = present is not None and present.kind != kind.name
    if is_foreign:
        raise RunError(f"{folder.path} contains files but no {kind.name}: choose an empty or new folder")


def package_versions() -> dict[str, str]:
    """Return the versions of Python, this package and the packages that compute the results."""
    packages = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "polars")
    versions = {package: version(package) for package in packages}
    return {"python": platform.python_version(), "stickytoken": __version__} | versions


def hardware(device: str) -> dict[str, str]:
    """Return a description of the machine and the device, for the record of a measurement."""
    import torch

    facts = {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "torch_threads": str(torch.get_num_threads()),
        "device": device,
    }
    if device.startswith("cuda"):
        facts["device_name"] = torch.cuda.get_device_name(torch.device(device))
    return facts


def now() -> str:
    """Return the current UTC time in ISO 8601 format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
