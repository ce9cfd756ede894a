"""Measure the rows of an embedding matrix: lengths, distances from means, and nearest neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.unit_vectors import unit_vectors

Floats: TypeAlias = NDArray[np.float64]

# Words that usually occur in the names of reserved vocabulary entries.
_RESERVED = re.compile(r"unused|reserved|extra_id|extra_token|madeupword|placeholder", re.IGNORECASE)
_BRACKETED = re.compile(r"[<\[].+[>\]]")
# Number of rows that are converted to another data type at a time. A converted copy of the whole matrix could
# need more memory than a small model.
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class EmbeddingMatrix:
    """The token embeddings of a model, and the names of its vocabulary entries.

    Attributes:
        rows: The embedding of each token id, shape (entries, D).
        names: Vocabulary string of each token, keyed by token id.
    """

    rows: NDArray[np.float32]
    names: Mapping[int, str]

    @cached_property
    def unused(self) -> list[int]:
        """Indices of the rows that belong to no vocabulary entry, or to a reserved entry."""
        return [row for row in range(len(self.rows)) if self._is_unused(row)]

    def _is_unused(self, row: int) -> bool:
        if row not in self.names:
            return True
        name = self.names[row]
        return bool(_BRACKETED.fullmatch(name) and _RESERVED.search(name))

    @cached_property
    def measures(self) -> dict[str, Floats]:
        """All measures, keyed by name, each of shape (entries,). The cosine of an all-zero row is NaN."""
        all_indices = np.arange(len(self.rows))
        means = {"mean": self._compute_mean(all_indices)}
        if self.unused:
            means["unused"] = self._compute_mean(np.array(self.unused))
        chunks: dict[str, list[Floats]] = {}  # for each measure, its values for successive rows
        for rows in self._read_chunks(all_indices):
            norms = np.linalg.norm(rows, axis=1)
            chunks.setdefault("embedding_norm", []).append(norms)
            for name, mean in means.items():
                distances = np.linalg.norm(rows - mean, axis=1)
                products_of_norms = norms * np.linalg.norm(mean)
                cosines = np.full_like(norms, np.nan)  # stays NaN where a norm is 0
                np.divide(rows @ mean, products_of_norms, out=cosines, where=products_of_norms > 0)
                chunks.setdefault(f"embedding_distance_to_{name}", []).append(distances)
                chunks.setdefault(f"embedding_cosine_to_{name}", []).append(cosines)
        return {name: np.concatenate(chunks_of_measure) for name, chunks_of_measure in chunks.items()}

    def find_neighbours(self, token_id: int, count: int) -> list[tuple[int, float]]:
        """Return the ids of the entries nearest to a token by cosine, and their cosines, nearest first.

        The list is empty if the token's row is zero.
        """
        norms = self.measures["embedding_norm"].astype(np.float32)
        if norms[token_id] == 0:
            return []
        candidates = np.array(
            [entry for entry in self._entries_with_rows if entry != token_id and norms[entry] > 0]
        )
        chunks = self._read_chunks(candidates, np.float32)
        products = np.concatenate([rows @ self.rows[token_id] for rows in chunks])
        cosines = products / (norms[candidates] * norms[token_id])
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return [(int(candidates[index]), float(cosines[index])) for index in nearest]

    @cached_property
    def geometry(self) -> dict[str, float | int]:
        """Statistics of how the rows of all vocabulary entries are distributed, keyed by name.

        ``mean_cosine`` is the mean cosine over all pairs of rows, which is 0 if the rows are isotropic.
        ``first_component_share`` is the share of the variance around the mean row that the first principal
        component explains.
        """
        entries = np.array(self._entries_with_rows)
        norms = self.measures["embedding_norm"][entries]
        centre = self._compute_mean(entries)
        width = self.rows.shape[1]
        unit_sum = np.zeros(width)
        # The eigenvalues of `scatter` are proportional to the variances along the principal components.
        scatter = np.zeros((width, width))
        for rows in self._read_chunks(entries):
            unit_sum += unit_vectors(rows).sum(axis=0)
            centred = rows - centre
            scatter += centred.T @ centred
        mean_unit = unit_sum / (norms > 0).sum()  # a row of zeros has no unit vector
        variances = np.linalg.eigvalsh(scatter)
        # `variances` are in ascending order; all of them are 0 if all rows are equal.
        first_share = float(variances[-1] / variances.sum()) if variances.sum() > 0 else 0.0
        return {
            "entries": len(entries),
            "dimensions": width,
            "unused": len(self.unused),
            "mean_norm": float(norms.mean()),
            "norm_spread": float(norms.std()),
            # The mean over all pairs of the products of unit vectors is the product of their means.
            "mean_cosine": float(mean_unit @ mean_unit),
            "first_component_share": first_share,
        }

    @property
    def _entries_with_rows(self) -> list[int]:
        # A tokenizer may have more entries than the matrix has rows.
        return [entry for entry in self.names if entry < len(self.rows)]

    def _compute_mean(self, indices: NDArray[np.intp]) -> Any:
        sums_of_chunks = [rows.sum(axis=0) for rows in self._read_chunks(indices)]
        return np.sum(sums_of_chunks, axis=0) / len(indices)

    def _read_chunks(
        self, indices: NDArray[np.intp], dtype: type[np.floating[Any]] = np.float64
    ) -> Iterator[Any]:
        for start in range(0, len(indices), _ROWS_AT_A_TIME):
            yield self.rows[indices[start : start + _ROWS_AT_A_TIME]].astype(dtype)
