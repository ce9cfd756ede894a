"""The strategies for new rows, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.measurement.progress import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Rows: TypeAlias = Mapping[int, NDArray[np.float32]]
"""New rows of the embedding matrix by token id, each of shape (D,)."""


class RowStrategy(StrEnum):
    """How a new row is made."""

    RELATIVES = "relatives"
    """From the rows of entries with similar spelling and of the entry's pieces."""
    DISTIL = "distil"
    """Trained so that contexts read as they do with the pieces in the entry's place."""
    KEEP_MEANING = "keep-meaning"
    """Trained so that one copy reads as it does now and many copies act as those of an ordinary token."""
    PIECES = "pieces"
    """The mean of the rows of the entry's pieces."""


@dataclass(frozen=True, slots=True)
class RowTarget:
    """What eight copies of a token should do; see `stickytoken.methods.pull`.

    Attributes:
        contraction: k, the share of a text's meaning that they take.
        pull: p, shape (d,).
    """

    contraction: float
    pull: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowContext:
    """What rows are made from.

    Attributes:
        model: the model; it is not changed.
        texts: texts that tokens are put into; the shorter ones are used.
        seed: seed of every choice among texts, places and entries.
        progress: told of every step.
    """

    model: SentenceTransformer
    texts: Sequence[str]
    seed: int = 42
    progress: ProgressCallback = ignore_progress
