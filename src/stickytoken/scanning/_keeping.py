"""Store the findings of batches: in a folder, to continue from, or in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stickytoken.measurement.store import ResultFolder, ShardCost

_BATCH = "batch"


class Keeper(Protocol):
    """Keeps JSON values of batches, by name."""

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """Return the stored values of a batch with this digest; None if there are none."""

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """Keep values of a batch."""


class FolderKeeper:
    """Keeps each batch in a shard of a folder.

    Args:
        folder: The folder, locked by the caller.
        begin: Claims the folder; called before anything is written.
    """

    def __init__(self, folder: ResultFolder, begin: Callable[[], None]) -> None:
        self._folder = folder
        self._begin: Callable[[], None] | None = begin

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """See `Keeper`."""
        shard = self._folder.read_shard(name, index, [index], _BATCH)
        if shard is None or shard["digest"].item() != digest:
            return None
        values: dict[str, Any] = json.loads(shard["values"].item())
        return values

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """See `Keeper`."""
        if self._begin is not None:
            self._begin()
            self._begin = None
        row = {_BATCH: index, "digest": digest, "values": json.dumps(values)}
        self._folder.write_shard(name, index, [row], ShardCost(0.0, encoded))


class MemoryKeeper:
    """Keeps batches until the scan ends."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Mapping[str, Any]] = {}

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """See `Keeper`; one scan does not change its documents."""
        del digest
        values = self._kept.get((name, index))
        return None if values is None else dict(values)

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """See `Keeper`."""
        del digest, encoded
        self._kept[name, index] = values
