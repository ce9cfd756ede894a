"""Compute how much copies of a token contribute to the similarity of carriers with unrelated anchors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation import files
from stickytoken.explanation.measuring import Part, PlacedCarrier, Surroundings
from stickytoken.explanation.statistics import AREAS
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.settings.explain import ExplainSettings
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inspector

Floats: TypeAlias = NDArray[np.float64]

# Names of the two measures that attribution computes.
_FROM_COPIES, _FROM_CARRIER = AREAS["attribution"]
# Label of the reference's row and column in an attribution matrix.
_REFERENCE = "(reference)"


@dataclass(frozen=True)
class _Pair:
    """A carrier with copies of the token, and an anchor that is unrelated to it."""

    carrier: PlacedCarrier
    carrier_ids: tuple[int, ...]  # content ids, including the copies
    anchor: str
    anchor_ids: tuple[int, ...]
    similarity_before: float  # cosine of the pair without copies

    @property
    def size(self) -> int:
        """Total number of tokens in the two texts."""
        return len(self.carrier_ids) + len(self.anchor_ids)


@dataclass(frozen=True)
class AttributedPair:
    """The similarity of a pair, divided among pairs of tokens.

    The matrix has a row for each token of the carrier and a column for each token of the anchor. The last row
    belongs to the carrier's reference, which is the carrier with padding in place of its tokens, and the last
    column to the anchor's.
    """

    pair: _Pair
    matrix: Floats  # shape (carrier tokens + 1, anchor tokens + 1)
    similarity: float  # cosine of the pair with copies


@dataclass(frozen=True)
class Attribution:
    """The attributions of a token and its benign tokens.

    Attributes:
        by_token: Contributions, keyed by token id and then by measure, each of shape (carriers,).
        pairs: The attributed pairs of the token itself.
        error: Largest distance between a sum of contributions and the unit vector that the sum should equal.
    """

    by_token: Mapping[int, Mapping[str, Floats]]
    pairs: Sequence[AttributedPair]
    error: float


NO_ATTRIBUTION = Attribution({}, (), 0.0)


class Attributor:
    """Divides the similarities of carriers with anchors among tokens, by integrated Jacobians."""

    def __init__(
        self,
        inspector: Inspector,
        carriers: Sequence[PlacedCarrier],
        anchors: Sequence[str],
        surroundings: Surroundings,
        settings: ExplainSettings,
    ) -> None:
        """Prepare attributions that all use the same texts.

        Args:
            inspector: Gives access to the internal states of the model.
            carriers: The texts to which copies are added. Only the first few are used; the settings say how
                many.
            anchors: The texts that the carriers are compared with.
            surroundings: The vectors of the anchors, and the limit for unrelated texts.
            settings: The settings of the explanation.
        """
        from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

        self._encoder = inspector.encoder
        self._integrator = JacobianIntegrator(inspector)
        # Each measure averages over the first `attribution_carriers` carriers, and the first `pairs` carriers
        # are attributed token by token, so the larger of the two numbers is needed.
        self._carriers = carriers[: max(settings.attribution_carriers, settings.pairs)]
        self._anchors = anchors
        self._surroundings = surroundings
        self._settings = settings

    def attribute(
        self,
        token_id: int,
        benign_ids: Sequence[int],
        folder: ResultFolder | None,
        progress: ProgressCallback,
    ) -> Attribution:
        """Attribute the similarities of carriers with copies of a token, and of its benign tokens.

        Args:
            token_id: Id of the token.
            benign_ids: Ids of its benign tokens. Only the first few are attributed; the settings say how
                many.
            folder: Folder in which each result is stored, so that a later call can read it. If None, nothing
                is stored.
            progress: Called after every step.

        Returns:
            For each attributed token and each measure, the contributions in the first carriers; an
            attribution matrix for each pair of texts, with copies of the token itself; and the largest
            distance between a sum of contributions and the unit vector that the sum should equal.
        """
        carriers = self._carriers[: self._settings.attribution_carriers]
        attributed_ids = [token_id, *benign_ids[: self._settings.attribution_benign]]
        contents = [carrier.before for carrier in self._carriers]
        carrier_vectors: Floats = self._encoder.encode_ids(contents).astype(np.float64)
        # Unit vectors of the anchors that are unrelated to each carrier.
        unrelated_anchors = [
            self._surroundings.anchors[self._surroundings.find_unrelated(vector)]
            for vector in carrier_vectors[: len(carriers)]
        ]
        pairs = self._choose_pairs(token_id, carrier_vectors)
        # The work is counted in parts and positions to integrate.
        part_counts = [len(set(carrier.labels)) for carrier in carriers]
        total = len(attributed_ids) * sum(part_counts) + sum(pair.size for pair in pairs)
        stored = _StoredResults(folder, progress, total)
        progress(Progress("attribution", 0, total))

        by_token: dict[int, dict[str, Floats]] = {}
        attributed_pairs: list[AttributedPair] = []
        largest_error = 0.0
        result_numbers = itertools.count()  # each result for a token in a carrier is stored under its number
        for attributed_id in attributed_ids:
            results = []
            for carrier, unrelated, part_count in zip(carriers, unrelated_anchors, part_counts, strict=True):
                compute = partial(self._attribute_by_part, carrier, attributed_id, unrelated)
                number = next(result_numbers)
                results.append(
                    stored.read_or_compute("attribution", number, attributed_id, part_count, compute)
                )
            by_token[attributed_id] = {
                name: np.array([result[name] for result in results]) for name in AREAS["attribution"]
            }
            largest_error = max(largest_error, *(result["error"] for result in results))
            # The token comes first, and its pairs next, so that an interruption costs only benign tokens.
            if attributed_id == token_id:
                for index, pair in enumerate(pairs):
                    compute = partial(self._attribute_by_position, pair)
                    result = stored.read_or_compute("pair", index, token_id, pair.size, compute)
                    matrix = np.array(result["values"])
                    attributed_pairs.append(AttributedPair(pair, matrix, result["similarity"]))
        return Attribution(by_token, attributed_pairs, largest_error)

    def _choose_pairs(self, token_id: int, carrier_vectors: Floats) -> list[_Pair]:
        """Pair each of the first carriers with one unrelated anchor.

        The anchor is the one with the median similarity among all anchors that are unrelated to the carrier
        without copies (see `Surroundings.find_unrelated`).
        """
        pairs = []
        paired_carriers = self._carriers[: self._settings.pairs]  # the vectors may be of more carriers
        for carrier, vector in zip(paired_carriers, carrier_vectors, strict=False):
            similarities = self._surroundings.anchors @ unit_vectors(vector)
            unrelated = np.flatnonzero(self._surroundings.find_unrelated(vector))
            by_similarity = unrelated[np.argsort(similarities[unrelated], kind="stable")]
            median_index = int(by_similarity[len(by_similarity) // 2])
            anchor = self._anchors[median_index]
            pairs.append(
                _Pair(
                    carrier=carrier,
                    carrier_ids=carrier.with_copies(token_id),
                    anchor=anchor,
                    anchor_ids=self._encoder.tokenize([anchor])[0].ids,
                    similarity_before=float(similarities[median_index]),
                )
            )
        return pairs

    def _attribute_by_part(self, carrier: PlacedCarrier, token_id: int, unrelated: Floats) -> dict[str, Any]:
        """Return how much the copies and the carrier contribute, on average, to similarities with anchors.

        ``unrelated`` holds the unit vectors of the unrelated anchors, shape (anchors, d).
        """
        # The integrator needs consecutive part numbers, but a carrier may lack a `Part`, such as the prompt.
        present_labels = sorted(set(carrier.labels))
        part_numbers = [present_labels.index(label) for label in carrier.labels]
        contributions = self._integrator.contributions(
            carrier.with_copies(token_id), part_numbers, self._settings.steps
        )
        means = {
            label: float((unrelated @ contributions.parts[number]).mean())
            for number, label in enumerate(present_labels)
        }
        # The contribution of the reference is left out, because it is the same for all tokens.
        return {
            _FROM_COPIES: means[int(Part.COPIES)],
            _FROM_CARRIER: means.get(int(Part.CARRIER), 0.0),
            "error": contributions.error,
        }

    def _attribute_by_position(self, pair: _Pair) -> dict[str, Any]:
        from stickytoken.inspection import similarity_matrix

        steps = self._settings.steps
        carrier_ids = pair.carrier_ids
        anchor_ids = pair.anchor_ids
        # Each token is a part of its own.
        carrier = self._integrator.contributions(carrier_ids, range(len(carrier_ids)), steps)
        anchor = self._integrator.contributions(anchor_ids, range(len(anchor_ids)), steps)
        return {
            "values": similarity_matrix(carrier, anchor),
            "similarity": float(carrier.vector @ anchor.vector),  # both are unit vectors
        }


@dataclass
class _StoredResults:
    """Results that a folder keeps. Each is computed unless it is stored, and counted in the progress."""

    folder: ResultFolder | None
    progress: ProgressCallback
    total: int
    done: int = 0
    computed: int = 0  # how much of `done` was computed in this session

    def read_or_compute(
        self, stage: str, index: int, token_id: int, work: int, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return a result that is stored, or else computed, and report that its ``work`` is done."""
        result, is_new = files.read_or_compute(self.folder, stage, index, token_id, compute)
        self.done += work
        if is_new:
            self.computed += work
        self.progress(Progress("attribution", self.done, self.total, self.computed))
        return result


def make_pair_rows(token_id: int, pairs: Sequence[AttributedPair]) -> list[dict[str, Any]]:
    """Return a row for each attributed pair, keyed by column.

    A row has the texts, their similarity with and without copies, the sum of the attribution matrix, and how
    much of this sum comes from the copies, from the carrier's own tokens and from the reference.
    """
    rows = []
    for number, attributed in enumerate(pairs):
        row_sums = attributed.matrix.sum(axis=1)
        row_parts = np.array(_list_row_parts(attributed))
        sums = {
            part: float(row_sums[row_parts == part].sum())
            for part in ("copies", "carrier", "prompt", "reference")
        }
        total = float(attributed.matrix.sum())
        rows.append(
            {
                "token_id": token_id,
                "pair": number,
                "carrier": attributed.pair.carrier.text,
                "anchor": attributed.pair.anchor,
                "similarity": attributed.similarity,
                "similarity_before": attributed.pair.similarity_before,
                "sum": total,
                "completeness_error": total - attributed.similarity,
                "from_copies": sums["copies"],
                # The prompt, like the carrier, is part of the text even if no copies are added.
                "from_carrier": sums["carrier"] + sums["prompt"],
                "from_reference": sums["reference"],
            }
        )
    return rows


def make_cell_rows(
    token_id: int, pairs: Sequence[AttributedPair], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return a row for each cell in the attributed pairs' matrices."""
    cells = []
    for number, attributed in enumerate(pairs):
        row_parts = _list_row_parts(attributed)
        row_tokens = _name_tokens(attributed.pair.carrier_ids, names)
        column_tokens = _name_tokens(attributed.pair.anchor_ids, names)
        for (row, column), value in np.ndenumerate(attributed.matrix):
            cells.append(
                {
                    "token_id": token_id,
                    "pair": number,
                    "row": row,
                    "row_token": row_tokens[row],
                    "row_part": row_parts[row],
                    "column": column,
                    "column_token": column_tokens[column],
                    "value": float(value),
                }
            )
    return cells


def _list_row_parts(attributed: AttributedPair) -> list[str]:
    part_names = [Part(label).name.lower() for label in attributed.pair.carrier.labels]
    return [*part_names, "reference"]  # the last row of the matrix belongs to the reference


def _name_tokens(ids: Sequence[int], names: Mapping[int, str]) -> list[str]:
    return [names.get(token_id, "") for token_id in ids] + [_REFERENCE]
