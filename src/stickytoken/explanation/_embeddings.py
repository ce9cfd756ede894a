"""Measure the rows of the embedding matrix. Pure.

The indicators of under-trained tokens follow Land and Bartolo, "Fishing for Magikarp" (EMNLP 2024): rows that
were hardly trained are short and lie close to the rows of entries that never occur.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Usual names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
_BRACKETED = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True, slots=True)
class EmbeddingMatrix:
    """The rows of the token embeddings.

    Attributes:
        rows: shape (entries, D).
        names: vocabulary strings by id.
    """

    rows: NDArray[np.float32]
    names: Mapping[int, str]

    def unused(self) -> list[int]:
        """Return rows that no text uses: beyond the vocabulary, or with the name of a reserved entry."""
        return [
            row
            for row in range(len(self.rows))
            if row not in self.names
            or (_BRACKETED.fullmatch(self.names[row]) and _RESERVED.search(self.names[row]))
        ]

    def measures(self) -> dict[str, Vector]:
        """Measure every row: its length, and how close it is to the mean of all rows and of unused rows.

        Returns:
            Measures by name, shape (entries,); NaN for the cosine of a row of zeros. Those that need unused
            rows are absent if there are none.
        """
        rows = self.rows.astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        found = {"embedding_norm": norms}
        means = {"mean": rows.mean(axis=0)}
        if unused := self.unused():
            means["unused"] = rows[unused].mean(axis=0)
        for name, mean in means.items():
            found[f"embedding_distance_to_{name}"] = np.linalg.norm(rows - mean, axis=1)
            lengths = norms * np.linalg.norm(mean)
            found[f"embedding_cosine_to_{name}"] = np.divide(
                rows @ mean, lengths, out=np.full_like(norms, np.nan), where=lengths > 0
            )
        return found

    def neighbours(self, token_id: int, count: int) -> list[tuple[int, float]]:
        """Return the nearest vocabulary entries by cosine, nearest first."""
        norms = np.linalg.norm(self.rows, axis=1)
        if norms[token_id] == 0:
            return []
        known = [k for k in self.names if k < len(self.rows) and k != token_id and norms[k] > 0]
        cosines = self.rows[known] @ self.rows[token_id] / (norms[known] * norms[token_id])
        order = np.argsort(-cosines, kind="stable")[:count]
        return [(known[k], float(cosines[k])) for k in order]

    def geometry(self) -> dict[str, float | int]:
        """Summarise the geometry of the vocabulary.

        ``mean_cosine`` is the mean cosine over all pairs of rows, 0 if they point evenly in all directions
        (isotropy). ``first_component_share`` is the share of the variance along the widest direction.
        """
        rows = self.rows[[k for k in self.names if k < len(self.rows)]].astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        units = rows[norms > 0] / norms[norms > 0, None]
        mean = units.mean(axis=0)
        spread = np.linalg.eigvalsh(np.cov(rows.T))
        return {
            "entries": len(rows),
            "dimensions": rows.shape[1],
            "unused": len(self.unused()),
            "mean_norm": float(norms.mean()),
            "norm_spread": float(norms.std()),
            "mean_cosine": float(mean @ mean),
            "first_component_share": float(spread[-1] / spread.sum()) if spread.sum() > 0 else 0.0,
        }


def share_below(values: Vector, token_id: int, available: Sequence[int]) -> float:
    """Return the share of available entries whose value is below that of a token."""
    others = values[[k for k in available if k < len(values)]]
    return float((others < values[token_id]).mean())
