"""Measure the rows of the embedding matrix. Pure.

The indicators of under-trained tokens follow Land and Bartolo, "Fishing for Magikarp" (EMNLP 2024): rows that
were hardly trained are short and lie close to the rows of entries that never occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Usual names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
# Rows that are copied at a time.
_ROWS = 4096
_BRACKETED = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True)
class EmbeddingMatrix:
    """The rows of the token embeddings.

    A large vocabulary's matrix is most of a small model, so it is never copied as a whole: everything is
    computed from a few thousand rows at a time.

    Attributes:
        rows: shape (entries, D).
        names: vocabulary strings by id.
    """

    rows: NDArray[np.float32]
    names: Mapping[int, str]

    @cached_property
    def unused(self) -> list[int]:
        """Rows that no text uses: beyond the vocabulary, or with the name of a reserved entry."""
        return [
            row
            for row in range(len(self.rows))
            if row not in self.names
            or (_BRACKETED.fullmatch(self.names[row]) and _RESERVED.search(self.names[row]))
        ]

    @cached_property
    def measures(self) -> dict[str, Vector]:
        """Measures of every row by name, shape (entries,).

        They are its length, and how close it is to the mean of all rows and of unused rows. The cosine of a
        row of zeros is NaN. Measures that need unused rows are absent if there are none.
        """
        means = {"mean": self._mean(np.arange(len(self.rows)))}
        if unused := self.unused:
            means["unused"] = self._mean(np.array(unused))
        found: dict[str, list[Vector]] = {}
        for rows in self._parts(np.arange(len(self.rows))):
            norms = np.linalg.norm(rows, axis=1)
            found.setdefault("embedding_norm", []).append(norms)
            for name, mean in means.items():
                distances = np.linalg.norm(rows - mean, axis=1)
                lengths = norms * np.linalg.norm(mean)
                cosines = np.divide(rows @ mean, lengths, out=np.full_like(norms, np.nan), where=lengths > 0)
                found.setdefault(f"embedding_distance_to_{name}", []).append(distances)
                found.setdefault(f"embedding_cosine_to_{name}", []).append(cosines)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def neighbours(self, token_id: int, count: int) -> list[tuple[int, float]]:
        """Return the nearest vocabulary entries by cosine, nearest first."""
        norms = self.measures["embedding_norm"].astype(np.float32)
        if norms[token_id] == 0:
            return []
        known = np.array([k for k in self._known if k != token_id and norms[k] > 0])
        products = np.concatenate([rows @ self.rows[token_id] for rows in self._parts(known, np.float32)])
        cosines = products / (norms[known] * norms[token_id])
        order = np.argsort(-cosines, kind="stable")[:count]
        return [(int(known[k]), float(cosines[k])) for k in order]

    @cached_property
    def geometry(self) -> dict[str, float | int]:
        """The geometry of the vocabulary.

        ``mean_cosine`` is the mean cosine over all pairs of rows, 0 if they point evenly in all directions
        (isotropy). ``first_component_share`` is the share of the variance along the widest direction.
        """
        known = np.array(self._known)
        norms = self.measures["embedding_norm"][known]
        centre, width = self._mean(known), self.rows.shape[1]
        units, products = np.zeros(width), np.zeros((width, width))
        for rows in self._parts(known):
            lengths = np.linalg.norm(rows, axis=1)
            units += (rows[lengths > 0] / lengths[lengths > 0, None]).sum(axis=0)
            centred = rows - centre
            products += centred.T @ centred
        mean = units / (norms > 0).sum()
        spread = np.linalg.eigvalsh(products)
        return {
            "entries": len(known),
            "dimensions": width,
            "unused": len(self.unused),
            "mean_norm": float(norms.mean()),
            "norm_spread": float(norms.std()),
            "mean_cosine": float(mean @ mean),
            "first_component_share": float(spread[-1] / spread.sum()) if spread.sum() > 0 else 0.0,
        }

    @cached_property
    def _known(self) -> list[int]:
        """Rows of vocabulary entries."""
        return [k for k in self.names if k < len(self.rows)]

    def _mean(self, places: NDArray[np.intp]) -> Vector:
        """Return the mean of some rows, shape (D,)."""
        found: Vector = np.sum([part.sum(axis=0) for part in self._parts(places)], axis=0) / len(places)
        return found

    def _parts(self, places: NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64) -> Iterator[Any]:
        """Yield some rows, a few thousand at a time, as copies of another precision."""
        for start in range(0, len(places), _ROWS):
            yield self.rows[places[start : start + _ROWS]].astype(dtype)


def share_below(values: Vector, token_id: int, available: Sequence[int]) -> float | None:
    """Return the share of available entries whose value is below that of a token; None if it has none."""
    if np.isnan(values[token_id]):
        return None
    others = values[[k for k in available if k < len(values)]]
    return float((others < values[token_id]).mean())
