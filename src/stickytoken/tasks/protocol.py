"""What a task offers: texts, what comes of their vectors, and metrics of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Outcomes: TypeAlias = NDArray[np.float64]
"""What a task's metrics are computed from: shape (units, columns)."""


class Side(StrEnum):
    """Which texts of a task get the copies."""

    QUERY = "query"
    """Queries; the first sentence of a pair."""
    DOCUMENT = "document"
    """Documents; the second sentence of a pair."""
    BOTH = "both"


class Scored(Protocol):
    """What has metrics. Higher is better for every one."""

    @property
    def name(self) -> str:
        """How the user calls it."""
        ...

    @property
    def layout(self) -> str:
        """Its kind: sts, retrieval, ..."""
        ...

    @property
    def unit(self) -> str:
        """What is resampled: pairs, queries, texts."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics; the first one is the main one."""
        ...

    @property
    def units(self) -> int:
        """Number of units."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 over everything in it that can change a number."""
        ...

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """A metric of several outcomes on the same units.

        Args:
            metric: its name.
            outcomes: shape (conditions, units, columns).
            sample: indices of units, repeated ones count as often; None is every unit once.

        Returns:
            Shape (conditions,); NaN where the metric is not defined.
        """
        ...


class Task(Scored, Protocol):
    """An evaluation of vectors of texts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the outcomes."""
        ...

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Its texts by role."""
        ...

    def edited(self, side: Side) -> frozenset[str]:
        """Roles that get copies."""
        ...

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """What comes of the vectors of all texts, unit by unit.

        Args:
            vectors: of each role, shape (texts, d).
            seed: of what is random in it, such as the start of a clustering.
        """
        ...


def fingerprint(*parts: Any) -> str:
    """Return the sha256 of JSON values in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, ensure_ascii=True, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors of length 1."""
    doubled = vectors.astype(np.float64)
    units: NDArray[np.float64] = doubled / np.linalg.norm(doubled, axis=1, keepdims=True)
    return units


def distinct(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Texts without repetition, and the place of each given one among them."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return tuple(places), np.array([places[text] for text in texts], dtype=np.intp)
