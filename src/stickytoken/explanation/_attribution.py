"""Compute how much copies of a token contribute to the similarity of carriers with unrelated anchors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdReader, find_kept_prompt
from stickytoken.explanation import files
from stickytoken.explanation.measuring import Material, Part, PlacedCarrier, Surroundings
from stickytoken.explanation.statistics import AREAS
from stickytoken.inspection.shapley import divide_vector
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder
from stickytoken.settings.explain import ExplainSettings
from stickytoken.unit_vectors import unit_vectors

Floats: TypeAlias = NDArray[np.float64]

# Names of the two measures that attribution computes.
_FROM_COPIES, _FROM_CARRIER = AREAS["attribution"]


@dataclass(frozen=True)
class _Pair:
    """A carrier with copies of the token, and an anchor that is unrelated to it."""

    carrier: PlacedCarrier
    carrier_ids: tuple[int, ...]  # content ids, including the copies, without a prompt that stays
    anchor: str
    anchor_ids: tuple[int, ...]  # content ids without a prompt that stays
    anchor_prompt: tuple[int, ...]  # ids of this prompt
    similarity_before: float  # cosine of the pair without copies

    @property
    def token_count(self) -> int:
        return len(self.carrier_ids) + len(self.anchor_ids)


@dataclass(frozen=True)
class AttributedPair:
    """The similarity of a pair, divided among pairs of tokens."""

    pair: _Pair
    matrix: Floats  # shape (carrier tokens, anchor tokens)

    @property
    def similarity(self) -> float:
        """Cosine of the pair with copies."""
        return float(self.matrix.sum())


@dataclass(frozen=True)
class Attribution:
    """The attributions of a token and its benign tokens.

    Attributes:
        by_token: Contributions, keyed by token id and then by measure, each of shape (carriers,).
        pairs: The attributed pairs of the token itself.
    """

    by_token: Mapping[int, Mapping[str, Floats]]
    pairs: Sequence[AttributedPair]


NO_ATTRIBUTION = Attribution({}, ())


@dataclass(frozen=True)
class Attributor:
    """Divides the similarities of carriers with anchors among tokens.

    Attributes:
        encoder: The model.
        material: The texts. Only the first few carriers are used; the settings say how many.
        surroundings: The vectors of the anchors, and the limit for unrelated texts.
        settings: The settings of the explanation.
    """

    encoder: IdReader
    material: Material
    surroundings: Surroundings
    settings: ExplainSettings

    def attribute(
        self,
        token_id: int,
        benign_ids: Sequence[int],
        folder: ResultFolder | None,
        progress: ProgressCallback,
    ) -> Attribution:
        """Attribute the similarities of carriers that have copies of a token or of its benign tokens.

        Args:
            token_id: Id of the token.
            benign_ids: Ids of its benign tokens. Only the first few are attributed; the settings say how
                many.
            folder: Folder in which each result is stored, so that a later call can read it. If None, nothing
                is stored.
            progress: Called after every step.

        Returns:
            For each attributed token and each measure, the contributions in the first carriers; and an
            attribution matrix for each pair of texts, with copies of the token itself.
        """
        carriers = self.material.carriers[: self.settings.attribution_carriers]
        attributed_ids = [token_id, *benign_ids[: self.settings.attribution_benign]]
        paired_carriers = self.material.carriers[: self.settings.pairs]
        pairs = [self._pair_with_unrelated_anchor(carrier, token_id) for carrier in paired_carriers]
        # Progress counts the parts into which texts are divided. In a pair, each token is a part of its own.
        part_count = sum(len(set(carrier.divided_parts)) for carrier in carriers)
        total = len(attributed_ids) * part_count + sum(pair.token_count for pair in pairs)
        stored = _StoredResults(folder, progress, total)
        progress(Progress("attribution", 0, total))

        results: dict[int, list[dict[str, Any]]] = {attributed_id: [] for attributed_id in attributed_ids}
        for number, (attributed_id, carrier) in enumerate(itertools.product(attributed_ids, carriers)):
            compute = partial(self._measure_contributions, carrier, attributed_id)
            part_count = len(set(carrier.divided_parts))
            result = stored.read_or_compute("attribution", number, attributed_id, part_count, compute)
            results[attributed_id].append(result)
        by_token: dict[int, dict[str, Floats]] = {}
        for attributed_id, by_carrier in results.items():
            by_token[attributed_id] = {
                measure: np.array([result[measure] for result in by_carrier])
                for measure in AREAS["attribution"]
            }
        attributed_pairs = []
        for number, pair in enumerate(pairs):
            compute = partial(self._divide_similarity, pair)
            result = stored.read_or_compute("pair", number, token_id, pair.token_count, compute)
            attributed_pairs.append(AttributedPair(pair, np.array(result["matrix"])))
        return Attribution(by_token, attributed_pairs)

    def _pair_with_unrelated_anchor(self, carrier: PlacedCarrier, token_id: int) -> _Pair:
        # Of the anchors that are unrelated to the carrier, the anchor with the median similarity is chosen.
        vector = self._encode_without_copies(carrier)
        similarities = self.surroundings.anchors @ unit_vectors(vector)
        unrelated = np.flatnonzero(self.surroundings.find_unrelated(vector))
        by_similarity = unrelated[np.argsort(similarities[unrelated], kind="stable")]
        median_index = int(by_similarity[len(by_similarity) // 2])
        anchor = self.material.anchors[median_index]
        tokenized = self.encoder.tokenize([anchor])[0]
        anchor_prompt = find_kept_prompt(self.encoder, tokenized)
        return _Pair(
            carrier=carrier,
            carrier_ids=carrier.with_copies(token_id)[len(carrier.kept_prompt) :],
            anchor=anchor,
            anchor_ids=tokenized.ids[len(anchor_prompt) :],
            anchor_prompt=anchor_prompt,
            similarity_before=float(similarities[median_index]),
        )

    def _encode_without_copies(self, carrier: PlacedCarrier) -> Floats:
        vector: Floats = self.encoder.encode_ids([carrier.ids_before])[0].astype(np.float64)
        return vector

    def _measure_contributions(self, carrier: PlacedCarrier, token_id: int) -> dict[str, float]:
        # Returns what the copies and the carrier's own tokens add to the mean similarity with unrelated
        # anchors.
        vector = self._encode_without_copies(carrier)
        unrelated = self.surroundings.anchors[self.surroundings.find_unrelated(vector)]  # unit vectors
        # A carrier may lack a `Part`, such as the prompt. `divide_vector` needs parts numbered without gaps.
        present_parts = sorted(set(carrier.divided_parts))
        part_of_id = [present_parts.index(part) for part in carrier.divided_parts]
        divided_ids = carrier.with_copies(token_id)[len(carrier.kept_prompt) :]
        # One vector per part, shape (parts, d). They sum to the unit vector of the text.
        vectors_of_parts = divide_vector(
            self.encoder, divided_ids, part_of_id, kept_prompt=carrier.kept_prompt
        )
        # What each part adds to the similarity with an unrelated anchor, averaged over these anchors.
        means_of_parts = (vectors_of_parts @ unrelated.T).mean(axis=1).tolist()
        mean_by_part = dict(zip(present_parts, means_of_parts, strict=True))
        # A carrier may consist of its prompt alone.
        return {_FROM_COPIES: mean_by_part[Part.COPIES], _FROM_CARRIER: mean_by_part.get(Part.CARRIER, 0.0)}

    def _divide_similarity(self, pair: _Pair) -> dict[str, Any]:
        # Each token is a part of its own.
        carrier_parts = range(len(pair.carrier_ids))
        anchor_parts = range(len(pair.anchor_ids))
        carrier = divide_vector(
            self.encoder, pair.carrier_ids, carrier_parts, kept_prompt=pair.carrier.kept_prompt
        )
        anchor = divide_vector(self.encoder, pair.anchor_ids, anchor_parts, kept_prompt=pair.anchor_prompt)
        return {"matrix": carrier @ anchor.T}  # shape (carrier tokens, anchor tokens)


@dataclass
class _StoredResults:
    """Reads results from a folder, computes results that are not stored yet, and reports progress."""

    folder: ResultFolder | None
    progress: ProgressCallback
    total: int  # number of parts of texts in all results
    done: int = 0  # number of parts in the results so far
    computed: int = 0  # number of parts in the results that were computed in this session

    def read_or_compute(
        self, stage: str, index: int, token_id: int, part_count: int, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        result, is_new = files.read_or_compute(self.folder, stage, index, token_id, compute)
        self.done += part_count
        if is_new:
            self.computed += part_count
        self.progress(Progress("attribution", self.done, self.total, self.computed))
        return result


def make_pair_rows(token_id: int, pairs: Sequence[AttributedPair]) -> list[dict[str, Any]]:
    """Return a row for each attributed pair, keyed by column.

    A row has the texts, their similarity with and without copies, and how much of the similarity with copies
    comes from the copies and from the rest of the carrier.
    """
    rows = []
    for number, attributed in enumerate(pairs):
        row_sums = attributed.matrix.sum(axis=1)
        is_copy = np.array(attributed.pair.carrier.divided_parts) == Part.COPIES
        rows.append(
            {
                "token_id": token_id,
                "pair": number,
                "carrier": attributed.pair.carrier.text,
                "anchor": attributed.pair.anchor,
                "similarity": attributed.similarity,
                "similarity_before": attributed.pair.similarity_before,
                "from_copies": float(row_sums[is_copy].sum()),
                # Here, the prompt counts as the carrier: it is part of the text even if no copies are added.
                "from_carrier": float(row_sums[~is_copy].sum()),
            }
        )
    return rows


def make_cell_rows(
    token_id: int, pairs: Sequence[AttributedPair], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return a row for each cell in the matrices of the pairs.

    ``names`` has the vocabulary string of each token id.
    """
    cells = []
    for number, attributed in enumerate(pairs):
        pair = attributed.pair
        for (row, column), value in np.ndenumerate(attributed.matrix):
            cells.append(
                {
                    "token_id": token_id,
                    "pair": number,
                    "row": row,
                    "row_token": names.get(pair.carrier_ids[row], ""),
                    "row_part": Part(pair.carrier.divided_parts[row]).name.lower(),
                    "column": column,
                    "column_token": names.get(pair.anchor_ids[column], ""),
                    "value": float(value),
                }
            )
    return cells
