"""Protocols of tasks: texts, outcomes computed from their vectors, and metrics of the outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Side

Outcomes: TypeAlias = NDArray[np.float64]
"""Values that the metrics of a task are computed from, shape (units, columns)."""


class Scored(Protocol):
    """Anything with metrics, all of them better when higher."""

    @property
    def name(self) -> str:
        """Name of the task."""

    @property
    def layout(self) -> str:
        """Kind of the task: sts, retrieval, ..."""

    @property
    def unit(self) -> str:
        """What is resampled: pairs, queries or texts."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first."""

    @property
    def units(self) -> int:
        """Number of units."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the task that can change a number."""

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute a metric of several outcomes on the same units.

        Args:
            metric: name of the metric.
            outcomes: outcomes, shape (conditions, units, columns).
            sample: indices of units, with repetitions; None is every unit once.

        Returns:
            Scores, shape (conditions,); NaN where the metric is undefined.
        """


class Task(Scored, Protocol):
    """An evaluation of text vectors."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the outcomes."""

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts by role."""

    def edited(self, side: Side) -> frozenset[str]:
        """Return the roles whose texts get copies."""

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the outcomes of all units from the vectors of all texts.

        Args:
            vectors: vectors by role, shape (texts, d).
            seed: seed of random steps, such as the start of a clustering.
        """


def fingerprint(*parts: Any) -> str:
    """Return the SHA-256 of JSON values in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, ensure_ascii=True, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()


def distinct(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the distinct texts, and the index of each given text among them."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return tuple(places), np.array([places[text] for text in texts], dtype=np.intp)
