"""Step 4: insert 1, 2, ... copies of a candidate into every carrier, and count the pairs that get closer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import SentencePair
from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Placement, Probe, Token, insert_as_ids, insert_as_text
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import probes
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.runner import Runner
from stickytoken.methods.std._scores import (
    PLACEMENTS,
    VALIDATION_WEIGHTS,
    Floats,
    Metric,
    distances,
    weighted,
)
from stickytoken.methods.std.placement import PathsByToken, Walk, walk_candidates
from stickytoken.methods.std.plan import encode_pairs, make_plan, truncates
from stickytoken.methods.std.records import StdPlanRecord
from stickytoken.settings.std import PUBLISHED_SEED, StdSettings

PathsOf: TypeAlias = Callable[[Token], Sequence[probes.GapPath]]
"""Returns the path of a token's copies in the carrier of each pair, for random placement."""


def insert_up_to(
    token: Token, carrier: probes.Carrier, placement: Placement, copies: int, path: probes.GapPath = ()
) -> Sequence[Probe]:
    """Return the texts that result from inserting 1, 2, ..., ``copies`` copies into a carrier.

    ``path`` is for random placement only: the number of words before each copy.
    """
    if isinstance(carrier, str):
        return insert_as_text(token, carrier, placement, copies, path)
    return insert_as_ids(token, carrier, placement, copies, path)


@dataclass(frozen=True)
class ValidationStage:
    """Measures the distance between every carrier and its anchor, for every placement and number of copies.

    If several pairs have the same carrier, their texts with copies at the start or at the end are identical,
    so these texts are encoded only once. For random placement, the gaps are drawn separately for each pair.

    Attributes:
        settings: settings of the method.
        carriers: one carrier per pair, possibly repeated.
        anchors: vectors of sentence1, shape (pairs, d).
        without_copies: vectors of sentence2 without copies, shape (pairs, d).
        gaps_of: returns the gaps between words into which randomly placed copies of a token go: one path per
            pair, with the number of words before each copy.
        name: name of the stage.
    """

    settings: StdSettings
    carriers: tuple[probes.Carrier, ...]
    anchors: NDArray[np.float32]
    without_copies: NDArray[np.float32]
    gaps_of: PathsOf
    name: str = "validate"

    @cached_property
    def _distinct_carriers(self) -> list[probes.Carrier]:
        return list(dict.fromkeys(self.carriers))

    @property
    def probes_per_token(self) -> int:
        # Copies before and after each distinct carrier, and at random in the carrier of each pair.
        return (2 * len(self._distinct_carriers) + len(self.carriers)) * self.settings.copies

    def probes(self, token: Token) -> list[Probe]:
        copies = self.settings.copies
        texts: list[Probe] = []
        for placement in (Placement.PREFIX, Placement.SUFFIX):
            for carrier in self._distinct_carriers:
                texts += insert_up_to(token, carrier, placement, copies)
        # Pairs with the same carrier have copies in different gaps.
        for carrier, gaps in zip(self.carriers, self.gaps_of(token), strict=True):
            texts += insert_up_to(token, carrier, Placement.RANDOM, copies, gaps)
        return texts

    @cached_property
    def _probe_indices(self) -> NDArray[np.intp]:
        """Index in `probes` of each text, shape (pairs, placements, copies).

        `probes` consists of blocks: the texts with 1, 2, ... copies in one carrier and placement.
        """
        copies = self.settings.copies
        index_of_carrier = {carrier: index for index, carrier in enumerate(self._distinct_carriers)}
        distinct_count = len(self._distinct_carriers)
        carrier_indices = np.array([index_of_carrier[carrier] for carrier in self.carriers])
        # For each placement, the block of each pair, in the order of `probes`.
        blocks = {
            Placement.PREFIX: carrier_indices,
            Placement.SUFFIX: distinct_count + carrier_indices,
            Placement.RANDOM: 2 * distinct_count + np.arange(len(self.carriers)),
        }
        block_starts = np.stack([blocks[placement] * copies for placement in PLACEMENTS], axis=1)
        return block_starts[:, :, None] + np.arange(copies)

    @cached_property
    def _distances_before(self) -> dict[Metric, Floats]:
        # Without copies: for each metric, the distance of each pair, shape (pairs,).
        return distances(self.without_copies, self.anchors)

    def measure(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> list[Mapping[str, float | list[float]]]:
        """Return the validation rates and lifts of each token; see `_measure_token`."""
        return [self._measure_token(of_token) for of_token in np.split(vectors, len(tokens))]

    def _measure_token(self, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Compute the validation rates and lifts of a token from the vectors of its probes.

        A pair gets closer if its mean distance over 1, ..., n copies is below its distance without copies.

        Returns:
            For each metric, the share of pairs that get closer with each placement
            (``rate_METRIC_PLACEMENT``), and the weighted sum of these shares (``rate_METRIC``). ``lift`` is
            the mean rise in cosine over all pairs, placements and numbers of copies, and ``lift_by_copies``
            is the mean rise in cosine for each number of copies.
        """
        # The arrays of distances have shape (pairs, placements, copies).
        distances_after = distances(vectors[self._probe_indices], self.anchors[:, None, None, :])
        row: dict[str, float | list[float]] = {}
        for metric, after in distances_after.items():
            mean_after = after.mean(axis=2)
            # Whether each pair gets closer with each placement, shape (pairs, placements).
            gets_closer = (mean_after < self._distances_before[metric][:, None]).astype(np.float64)
            row[f"rate_{metric}"] = float(weighted(gets_closer, VALIDATION_WEIGHTS))
            for index, placement in enumerate(PLACEMENTS):
                row[f"rate_{metric}_{placement}"] = float(gets_closer[:, index].mean())
        # A fall in cosine distance is a rise in cosine.
        cosine_rises = self._distances_before[Metric.COSINE][:, None, None] - distances_after[Metric.COSINE]
        row["lift"] = float(cosine_rises.mean())
        row["lift_by_copies"] = cosine_rises.mean(axis=(0, 1)).tolist()
        return row


def validation_stage(encoder: Encoder, settings: StdSettings, plan: StdPlanRecord) -> ValidationStage:
    """Return the stage that validates candidates on the validation pairs of the plan.

    The carriers, into which copies are inserted, are the second sentences of the pairs. The anchors are the
    first sentences of the pairs. The gaps for random placement depend only on seed, token and pair, and not
    on the order in which candidates are validated.
    """
    carriers = probes.as_carriers(encoder, settings.inserted_as, [pair.sentence2 for pair in plan.validation])
    words = tuple(probes.word_count(carrier) for carrier in carriers)
    paths = PathsByToken(settings.seed, words, settings.copies, settings.inserted_as)
    anchors, without_copies = encode_pairs(encoder, plan.validation, settings.inserted_as)
    return ValidationStage(
        settings, carriers, anchors=anchors, without_copies=without_copies, gaps_of=paths.of
    )


def published_paths(
    encoder: Encoder,
    settings: StdSettings,
    plan: StdPlanRecord,
    vocabulary: Iterable[Token],
    candidates: Iterable[Token],
) -> PathsOf:
    """Return a function that gives the random gaps of a candidate's copies, as in the published runs.

    The published runs drew the gaps for validation from the random stream from which they had already drawn
    the gaps for scoring (see `walk_candidates`).

    Args:
        encoder: the model.
        settings: settings of the method.
        plan: provides the scoring pairs and the validation pairs.
        vocabulary: all available tokens, in order of id.
        candidates: the candidates, in the order they are validated.

    Returns:
        A function that takes a candidate and returns one path per validation pair. A path lists the number of
        words before each copy.
    """

    def make_walk(pairs: Sequence[SentencePair]) -> Walk:
        texts = [pair.sentence2 for pair in pairs]
        return Walk.in_carriers(probes.as_carriers(encoder, settings.inserted_as, texts), settings)

    paths = walk_candidates(
        settings.seed,
        vocabulary,
        scoring=make_walk(plan.scoring),
        candidates=candidates,
        validation=make_walk(plan.validation),
    )
    return lambda token: paths[token.id]


def places_as_published(job: Job[StdSettings]) -> bool:
    """Return whether validation puts random copies into the same gaps as the published runs.

    It does if the seed is the published seed and the whole vocabulary was scored.
    """
    return job.settings.seed == PUBLISHED_SEED and job.scope is Scope.WHOLE


@dataclass(frozen=True, slots=True)
class StdEvidence:
    """The results of validating a token, whatever its score, with `stickytoken probe`."""

    token_id: int
    token: str
    category: str
    validation_rate: dict[str, float]  # weighted share of the pairs whose distance falls, keyed by metric
    by_placement: dict[str, dict[str, float]]  # unweighted shares, keyed by placement, then by metric
    lift: float  # rise of the cosine, averaged over pairs, placements and numbers of copies
    lift_by_copies: list[float]  # mean rise of the cosine with 1, 2, ... copies
    pairs: int  # number of pairs that were measured


def probe(job: Job[StdSettings], progress: ProgressCallback) -> list[StdEvidence]:
    """Validate a job's tokens regardless of their scores, and return the results in the same order."""
    # With one token per shard, progress is reported after each token.
    runner = Runner.in_memory(job.encoder, progress, shard_probes=1)
    plan = make_plan(job, runner)
    stage = validation_stage(job.encoder, job.settings, plan)
    rows = runner(stage, job.tokens, truncate=truncates(job.encoder, job.settings.inserted_as))
    return [make_evidence(row, job, len(plan.validation)) for row in rows.to_dicts()]


def make_evidence(row: Mapping[str, Any], job: Job[StdSettings], pair_count: int) -> StdEvidence:
    """Convert a row that `ValidationStage.measure` returned, with its token id, to `StdEvidence`."""
    vocabulary_index = job.vocabulary.index_of(row["token_id"])
    by_placement: dict[str, dict[str, float]] = {}
    for placement in PLACEMENTS:
        by_placement[placement.value] = {metric.value: row[f"rate_{metric}_{placement}"] for metric in Metric}
    return StdEvidence(
        token_id=row["token_id"],
        token=job.vocabulary.tokens[vocabulary_index],
        category=job.vocabulary.categories[vocabulary_index].value,
        validation_rate={metric.value: row[f"rate_{metric}"] for metric in Metric},
        by_placement=by_placement,
        lift=row["lift"],
        lift_by_copies=row["lift_by_copies"],
        pairs=pair_count,
    )
