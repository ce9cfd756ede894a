"""What a strategy for new rows is given."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stickytoken.measurement.progress import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True, slots=True)
class RowContext:
    """What rows are made from.

    Attributes:
        model: the model; it is not changed.
        texts: texts that tokens are put into; the shorter ones are used.
        seed: seed of every choice among texts, places and entries.
        progress: told of every step.
        avoided: entries that serve no other as a piece or a relative, because they may be sticky.
    """

    model: SentenceTransformer
    texts: Sequence[str]
    seed: int = 42
    progress: ProgressCallback = ignore_progress
    avoided: Collection[int] = ()
