"""The one way to begin, continue or open a measurement, whatever is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from stickytoken.errors import RunError
from stickytoken.measurement.identity import differences
from stickytoken.measurement.records import MeasurementRecord
from stickytoken.measurement.store import IDENTITY_FILE, ResultFolder

R = TypeVar("R", bound=MeasurementRecord)


class IdentityRecord(MeasurementRecord):
    """identity.json: which measurement the shards of a folder belong to.

    It is written before anything else, so that a folder whose own record was lost can be continued.
    """

    schema_version: int = 1
    kind: str


@dataclass(frozen=True)
class Kind(Generic[R]):
    """A kind of measurement.

    Attributes:
        name: as messages call it, such as ``run``.
        file: its record.
        read: reads the record of a folder that has one; None if that record cannot be continued and may
            be replaced.
        finished: whether nothing is left to compute.
    """

    name: str
    file: str
    read: Callable[[ResultFolder], R | None]
    finished: Callable[[R, ResultFolder], bool]


@dataclass(frozen=True)
class Resumed(Generic[R]):
    """A locked folder that belongs to one measurement.

    Attributes:
        folder: where to commit.
        record: the record found there, or the one that was passed.
        finished: whether the measurement only needs to be opened.
        kind: of the measurement.
    """

    folder: ResultFolder
    record: R
    finished: bool
    kind: Kind[R]

    def begin(self, record: R | None = None) -> None:
        """Claim the folder, before the first shard.

        Input that cannot be planned must not block a folder, so plan first.

        Args:
            record: the record without results; None if the kind writes its record only at the end.
        """
        own = IdentityRecord(
            kind=self.kind.name, identity=self.record.identity, identity_parts=self.record.identity_parts
        )
        if not (self.folder.path / IDENTITY_FILE).is_file():
            self.folder.write_record(IDENTITY_FILE, own)
        if record is not None:
            self.folder.write_record(self.kind.file, record)

    def finish(self, record: R) -> None:
        """Commit the record with its results. Everything else must be in place."""
        self.folder.write_record(self.kind.file, record)


@contextmanager
def resumed(folder: ResultFolder, kind: Kind[R], record: R) -> Iterator[Resumed[R]]:
    """Lock a folder and find out what is left to do for a measurement.

    Args:
        folder: new, empty, or that of the same measurement.
        kind: of the measurement.
        record: of the measurement that is asked for.

    Raises:
        RunError: the folder holds something else, another measurement or a damaged record, is in use by
            another process, or cannot be written.
    """
    if folder.holds_other_files(kind.file) or _claimed(folder, kind) not in (None, kind.name):
        raise RunError(f"{folder.path} holds files but no {kind.name}: choose an empty or a new folder")
    with folder.locked():
        earlier = kind.read(folder) if (folder.path / kind.file).is_file() else None
        if earlier is not None:
            _require_same(folder, kind, earlier, record)
        elif not (folder.path / kind.file).is_file():
            claim = folder.read_record(IDENTITY_FILE, IdentityRecord)
            if claim is not None:
                _require_same(folder, kind, claim, record)
        finished = earlier is not None and kind.finished(earlier, folder)
        yield Resumed(folder, earlier or record, finished, kind)


def _claimed(folder: ResultFolder, kind: Kind[R]) -> str | None:
    """The kind of measurement that a folder without a record belongs to, if it says so."""
    if (folder.path / kind.file).is_file():
        return kind.name
    claim = folder.read_record(IDENTITY_FILE, IdentityRecord)
    return None if claim is None else claim.kind


def _require_same(
    folder: ResultFolder, kind: Kind[R], earlier: MeasurementRecord, ours: MeasurementRecord
) -> None:
    if earlier.identity == ours.identity:
        return
    parts = ", ".join(differences(ours.identity_parts, earlier.identity_parts)) or "its identity"
    raise RunError(f"{folder.path} holds another {kind.name} (it differs in {parts}): choose another folder")
