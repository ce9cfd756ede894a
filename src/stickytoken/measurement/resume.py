"""Begin, continue or open a measurement of any kind."""

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
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import polars as pl
from pydantic import BaseModel, ConfigDict

from stickytoken.errors import KEPT_NOTE, RunError
from stickytoken.measurement import IDENTITY_FILE, ResultFolder
from stickytoken.version import __version__

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from stickytoken.encoders.protocol import EncoderIdentity


def settings_values(settings: DataclassInstance) -> dict[str, Any]:
    """Return the settings as JSON stores them."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return values


def identity_of(
    version: int, encoder: EncoderIdentity, settings: DataclassInstance, **inputs: Any
) -> dict[str, Any]:
    """Collect what can change numbers by more than rounding; no batch size, device, engine, name or path."""
    return {"version": version, "encoder": asdict(encoder), **inputs, "settings": settings_values(settings)}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the keys whose values differ, those of nested mappings joined by dots, in order."""
    keys: list[str] = []
    for key in sorted({*ours, *theirs}):
        our_value = ours.get(key)
        their_value = theirs.get(key)
        if isinstance(our_value, Mapping) and isinstance(their_value, Mapping):
            keys += differences(our_value, their_value, f"{prefix}{key}.")
        elif our_value != their_value:
            keys.append(f"{prefix}{key}")
    return keys


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasurementRecord(Record):
    schema_version: int
    identity: str
    identity_parts: dict[str, Any]


R = TypeVar("R", bound=MeasurementRecord)
M = TypeVar("M")


class IdentityRecord(MeasurementRecord):
    """The measurement that the shards of a folder belong to, written first: it survives a lost record."""

    schema_version: int = 1
    kind: str


@dataclass(frozen=True)
class MeasurementKind(Generic[R]):
    name: str  # in messages, such as ``run``
    file: str  # of its record
    # Reads the record of a folder that has one; None if it cannot be continued and may be replaced.
    read: Callable[[ResultFolder], R | None]
    finished: Callable[[R, ResultFolder], bool]  # whether nothing is left to compute


@dataclass(frozen=True)
class Resumed(Generic[R]):
    folder: ResultFolder
    record: R  # found in the folder, or else the one passed to `resumed`
    finished: bool  # whether the measurement only needs to be opened
    kind: MeasurementKind[R]

    def begin(self, record: R | None = None) -> None:
        identity, identity_parts = self.record.identity, self.record.identity_parts
        if not (self.folder.path / IDENTITY_FILE).is_file():
            identity_record = IdentityRecord(
                kind=self.kind.name, identity=identity, identity_parts=identity_parts
            )
            self.folder.write_record(IDENTITY_FILE, identity_record)
        if record is not None:
            self.folder.write_record(self.kind.file, record)

    def finish(self, record: R) -> None:
        self.folder.write_record(self.kind.file, record)


@contextmanager
def resumed(folder: ResultFolder, kind: MeasurementKind[R], record: R) -> Iterator[Resumed[R]]:
    """Lock a folder and open the measurement in it, or begin the one of the record.

    Raises:
        RunError: the folder holds another measurement, other files, or is locked.
    """
    require_vacant(folder, kind)
    with folder.locked():
        recorded = (folder.path / kind.file).is_file()
        earlier = kind.read(folder) if recorded else None
        claim = earlier if recorded else folder.read_record(IDENTITY_FILE, IdentityRecord)
        if claim is not None and claim.identity != record.identity:
            differing = ", ".join(differences(record.identity_parts, claim.identity_parts)) or "its identity"
            raise RunError(
                f"{folder.path} contains a different {kind.name} (it differs in {differing}): choose another "
                "folder"
            )
        finished = earlier is not None and kind.finished(earlier, folder)
        try:
            yield Resumed(folder, earlier or record, finished, kind)
        except BaseException as error:
            shards = folder.shard_count()
            if shards:
                error.add_note(f"{KEPT_NOTE}: {shards:,} in {folder.path}")
            raise


def table_schemas(
    tables: Mapping[str, str], text: str, whole: str, switches: str
) -> dict[str, dict[str, Any]]:
    """Declare tables by the names of their columns, and columns by their types; the others hold floats."""
    types: dict[str, Any] = {}
    for columns, kind in ((text, pl.String), (whole, pl.Int64), (switches, pl.Boolean)):
        types |= dict.fromkeys(columns.split(), kind)
    return {
        name: {column: types.get(column, pl.Float64) for column in columns.split()}
        for name, columns in tables.items()
    }


def measurements_in(
    run: Path, pattern: str, open_: Callable[[Path], M], called: str, started: Callable[[M], str]
) -> tuple[tuple[M, ...], tuple[str, ...]]:
    records: list[M] = []
    unread: list[str] = []
    for file in sorted(run.glob(pattern)):
        try:
            records.append(open_(file.parent))
        except RunError as error:
            unread.append(f"{called} is left out: {error}.")
    return tuple(sorted(records, key=started, reverse=True)), tuple(unread)


def require_vacant(folder: ResultFolder, kind: MeasurementKind[Any]) -> None:
    foreign = folder.holds_other_files(kind.file)
    if not foreign and not (folder.path / kind.file).is_file():
        claim = folder.read_record(IDENTITY_FILE, IdentityRecord)
        foreign = claim is not None and claim.kind != kind.name
    if foreign:
        raise RunError(f"{folder.path} contains files but no {kind.name}: choose an empty or new folder")


def package_versions() -> dict[str, str]:
    packages = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "polars")
    versions = {package: version(package) for package in packages}
    return {"python": platform.python_version(), "stickytoken": __version__} | versions


def hardware(device: str) -> dict[str, str]:
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
    return datetime.now(UTC).isoformat(timespec="seconds")
