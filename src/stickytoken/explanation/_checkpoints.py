"""Commit parts of an explanation as they are computed, so that an interrupt loses only one of them."""

from __future__ import annotations

import json
import time
from typing import Any

from stickytoken.explanation._measuring import Measured
from stickytoken.measurement.store import ResultFolder, ShardCost

_INSIDE = "inside"


class Checkpoints:
    """Parts of the explanation of one token, each a shard of its folder that holds JSON.

    Args:
        folder: the locked folder of the explanation; None keeps nothing.
    """

    def __init__(self, folder: ResultFolder | None = None) -> None:
        self.folder = folder
        self._started = time.perf_counter()

    def read(self, stage: str, index: int, token_id: int) -> Any:
        """Return a committed part; None if it is missing or damaged."""
        found = None if self.folder is None else self.folder.read_shard(stage, index, [token_id])
        return None if found is None else json.loads(found["content"][0])

    def commit(self, stage: str, index: int, token_id: int, content: Any) -> None:
        """Commit a part; see `read` for the arguments."""
        if self.folder is not None:
            now = time.perf_counter()
            cost, self._started = ShardCost(now - self._started, 1), now
            row = {"token_id": token_id, "content": json.dumps(content)}
            self.folder.write_shard(stage, index, [row], cost)

    def measured(self, token_id: int) -> Measured | None:
        """Return the committed measurements on all carriers; None if there are none."""
        found = self.read(_INSIDE, 0, token_id)
        return None if found is None else Measured.of(found)

    def commit_measured(self, token_id: int, measured: Measured) -> None:
        """Commit the measurements on all carriers."""
        if self.folder is not None:
            self.commit(_INSIDE, 0, token_id, measured.document())
