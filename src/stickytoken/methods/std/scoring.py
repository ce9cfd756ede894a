"""Step 3: score tokens on a few pairs, and encode only the texts that are needed to find the best tokens.

A series is the combination of a pair and a placement. The score of a series is computed from the distances
with 0 to n copies of the token. If only some distances of a series are known, the known distances give an
upper bound of the score (`score_bounds`). Once the upper bound of a token shows that the token is not among
the best, no further texts of the token are encoded. Tokens are scored in rounds. Each round encodes, for
every token that may still be among the best, the texts that are expected to lower the token's upper bound
most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Probe, Token
from stickytoken.measurement.stages import RowValue
from stickytoken.methods import probes
from stickytoken.methods.base import Job
from stickytoken.methods.std._scores import (
    PLACEMENTS,
    SCORE_CONSTANTS,
    SCORING_WEIGHTS,
    Floats,
    Metric,
    distances,
    has_risen,
    placement_weights,
    score_bounds,
    scores_behind_threshold,
    sticky_score,
    weighted,
)
from stickytoken.methods.std.counting import CountedRunner
from stickytoken.methods.std.placement import Walk, walk_vocabulary
from stickytoken.methods.std.plan import encode_pairs
from stickytoken.methods.std.records import StdPlanRecord
from stickytoken.settings.std import Scores, StdSettings

SAMPLE = 256
"""Number of random tokens that are scored exactly. They show the distribution of scores, which texts lower a
bound most, and roughly which score the candidates reach. For all-MiniLM-L6-v2, the standard error of this
estimate of the candidates' score is 1.5.
"""

NEEDED_SHARE = 0.26
"""Mean share of a token's texts that must be encoded despite the bounds, measured on all-MiniLM-L6-v2."""

# Minimum ratio of tokens to sample size. With fewer tokens, all tokens are scored exactly.
_SAMPLED_FROM = 4
# Number of texts in a round, which is enough to fill batches with texts of every length.
_ROUND_TEXTS = 8192
# Maximum number of texts per token in a round. Further texts are often unnecessary.
_MOST_TEXTS = 3
# The first threshold is set so that only this share of the expected number of candidates reaches it in the
# sample. If the threshold is too low, unnecessary texts are encoded for every token; if it is too high,
# scoring only takes more rounds.
_LIKELY_SHARE = 0.75
# Number of tokens to score at a time until the threshold is known, as a multiple of the number of candidates.
_AT_A_TIME = 1.5
# Minimum number of sampled tokens for which `expected_gains` computes a separate mean per series. With fewer
# tokens, it uses the mean over all series.
_LEAST_OBSERVED = 4
# A sum of the same numbers in another order differs by less than this.
_SLACK = 1e-9
# Key of the random generator, which makes the sample independent of other draws.
_SAMPLE_KEY = 2
# Name, in the stored rows of a stage, of the column with the indices of a token's texts (see `ScoringPairs`).
_TEXT_INDICES = "places"
# Number of vectors that are converted to double precision at a time.
_ROWS_AT_A_TIME = 8192


@dataclass(frozen=True)
class ScoringPairs:
    """The P pairs that tokens are scored on, with the vectors of their texts.

    A series is the combination of a pair and a placement. A token has one text for each series and each
    number of copies. A text index identifies one of these texts: the texts are numbered from 0, series by
    series, and within a series by the number of copies. For example, if there are at most 8 copies, the texts
    of the first series have the indices 0 (1 copy) to 7 (8 copies).

    Attributes:
        settings: settings of the method.
        carriers: sentence2 of each pair, tokenized or as text.
        anchors: vectors of sentence1, shape (P, d).
        without_copies: vectors of sentence2 without copies, shape (P, d).
    """

    settings: StdSettings
    carriers: tuple[probes.Carrier, ...]
    anchors: NDArray[np.float32]
    without_copies: NDArray[np.float32]

    @property
    def series_count(self) -> int:
        return len(self.carriers) * len(PLACEMENTS)

    @property
    def text_indices(self) -> tuple[int, ...]:
        """Indices of all texts of a token."""
        return tuple(range(self.series_count * self.settings.copies))

    @property
    def weights(self) -> Floats:
        """Weight of each series in the score of a token, shape (series,)."""
        # The score averages over pairs, and sums over placements with weights. Series are numbered pair by
        # pair, so the weights of the placements are repeated for each pair.
        pair_count = len(self.carriers)
        return np.tile(placement_weights(SCORING_WEIGHTS), pair_count) / pair_count

    def pairs_of(self, text_indices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the pair index of each of the given texts."""
        return text_indices // (self.settings.copies * len(PLACEMENTS))

    def series_and_copies(self, text_indices: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the series of each of the given texts, and the number of copies in each text.

        For example, with at most 8 copies, text 9 is in series 1 and has 2 copies.
        """
        series, copies_minus_one = np.divmod(text_indices, self.settings.copies)
        return series, copies_minus_one + 1

    def probe(self, token: Token, text_index: int, paths: Sequence[probes.GapPath]) -> Probe:
        """Return the probe with this text index: the carrier of a pair, with copies of the token.

        A series is one pair in one placement; texts are numbered series by series, and within a series by
        the number of copies, from 1. ``paths`` says for each pair into which gaps between words copies go if
        they are placed at random.
        """
        series, copies_minus_one = divmod(text_index, self.settings.copies)
        pair, placement = divmod(series, len(PLACEMENTS))
        copies = copies_minus_one + 1
        return probes.with_copies(token, self.carriers[pair], PLACEMENTS[placement], copies, paths[pair])

    def probe_alone(self, token: Token) -> Probe:
        """Return an input that consists of the token alone, as text or as ids."""
        carrier = self.carriers[0]
        if isinstance(carrier, str):
            return token.text
        # Head and tail, which a prompt puts around a text, are the same for all carriers.
        return (*carrier.head, token.id, *carrier.tail)


@dataclass(frozen=True)
class AloneStage:
    """Measures the distances between the anchors and a text that consists of the token alone."""

    pairs: ScoringPairs
    name: str = "alone"
    probes_per_token: int = 1

    def probes(self, token: Token) -> list[Probe]:
        return [self.pairs.probe_alone(token)]  # a single probe, which has nothing but the token

    def measure(self, tokens: Sequence[Token], vectors: NDArray[np.float32]) -> list[Mapping[str, RowValue]]:
        """Return a row for each token with its distances to the anchors, as one list for each metric."""
        # From every vector to every anchor: for each metric, an array of shape (tokens, P).
        by_metric = distances(vectors[:, None], self.pairs.anchors)
        rows: list[Mapping[str, RowValue]] = []
        for token_index in range(len(tokens)):
            row: dict[str, RowValue] = {}
            for metric in Metric:
                row[metric.value] = by_metric[metric][token_index].tolist()
            rows.append(row)
        return rows


@dataclass(frozen=True)
class ScoringStage:
    """Measures, for each token, the distances between some of its texts and their anchors.

    Attributes:
        pairs: the pairs that tokens are scored on.
        text_indices: indices of the texts to encode, keyed by token id.
        paths: for each pair, the gaps between words into which randomly placed copies go; keyed by token id.
        name: name of the stage.
    """

    pairs: ScoringPairs
    text_indices: Mapping[int, Sequence[int]]
    paths: Mapping[int, Sequence[probes.GapPath]]
    name: str = "score"

    @property
    def probes_per_token(self) -> int:
        return max(map(len, self.text_indices.values()))

    @property
    def text_count(self) -> int:
        """Total number of texts to encode for all tokens."""
        return sum(map(len, self.text_indices.values()))

    def probes(self, token: Token) -> list[Probe]:
        paths = self.paths[token.id]
        return [self.pairs.probe(token, text_index, paths) for text_index in self.text_indices[token.id]]

    def measure(self, tokens: Sequence[Token], vectors: NDArray[np.float32]) -> list[Mapping[str, RowValue]]:
        """Measure the distance between each text and the anchor of the text's pair.

        Args:
            tokens: the tokens.
            vectors: vectors of all tokens' texts, token by token, shape (texts, d).

        Returns:
            One row per token. The column `_TEXT_INDICES` has the indices of the token's texts, and the column
            of each metric has the distances of these texts, in the same order.
        """
        indices_by_token = [np.array(self.text_indices[token.id], dtype=np.intp) for token in tokens]
        # The anchor of each text's pair, shape (texts, d).
        anchors = self.pairs.anchors[self.pairs.pairs_of(np.concatenate(indices_by_token))]
        # In blocks, because `distances` works in double precision.
        blocks: dict[Metric, list[Floats]] = {metric: [] for metric in Metric}
        for start in range(0, len(vectors), _ROWS_AT_A_TIME):
            stop = start + _ROWS_AT_A_TIME
            for metric, distances_of_block in distances(vectors[start:stop], anchors[start:stop]).items():
                blocks[metric].append(distances_of_block)
        by_metric = {metric: np.concatenate(blocks[metric]).tolist() for metric in Metric}
        # Give each token the distances of its texts, which follow one another.
        rows: list[Mapping[str, RowValue]] = []
        start = 0
        for token in tokens:
            stop = start + len(self.text_indices[token.id])
            row: dict[str, RowValue] = {_TEXT_INDICES: list(self.text_indices[token.id])}
            for metric in Metric:
                row[metric.value] = by_metric[metric][start:stop]
            rows.append(row)
            start = stop
        return rows


def scoring_pairs(encoder: Encoder, settings: StdSettings, plan: StdPlanRecord) -> ScoringPairs:
    """Return the plan's scoring pairs, with the vectors of their texts without copies."""
    texts = [pair.sentence2 for pair in plan.scoring]
    carriers = probes.as_carriers(encoder, settings.inserted_as, texts)
    anchors, without_copies = encode_pairs(encoder, plan.scoring, settings.inserted_as)
    return ScoringPairs(settings, carriers, anchors, without_copies)


def copies_order(copies: int) -> list[int]:
    """Return the numbers of copies from 1 to ``copies``, in the order in which their distances are measured.

    The order is chosen so that the upper bound of the score falls quickly. The largest number comes first,
    because its distance shows how far the distance falls or rises overall. The numbers 1 and ``copies`` - 1
    come next, because their distances show how much the first and the last copy change the distance. For
    example, the order for 5 copies is 5, 1, 4, 2, 3.
    """
    first_counts = list(dict.fromkeys([copies, 1, max(1, copies - 1)]))  # without repeats if copies is 1 or 2
    return first_counts + [count for count in range(1, copies + 1) if count not in first_counts]


class ScoringState:
    """What is known so far about the tokens' scores: some cosine distances, and upper bounds of the scores.

    A series is one sentence pair with copies in one placement. For each token, a series has one distance for
    each number of copies from 0 to the maximum.

    Attributes:
        distances: Distances between the carrier of each series, with 0, 1, 2, ... copies, and its anchor,
            shape (tokens, series, copies + 1); NaN if unknown.
        alone: Distances between a text of nothing but the token and the anchor of each series, shape
            (tokens, series).
        known_counts: Number of known distances of each series, not counting the distance with 0 copies, shape
            (tokens, series).
        has_risen: Whether any known distance of the series exceeds the known distance before it, shape
            (tokens, series).
        series_bounds: Upper bound of the score of each series, shape (tokens, series).
    """

    def __init__(self, pairs: ScoringPairs, ids: NDArray[np.int64], alone: Floats) -> None:
        """Start with only the distances without copies, which are the same for all tokens.

        The arrays have one row per token and one column per series, and all counts are 0.

        Args:
            pairs: the P pairs that tokens are scored on.
            ids: ids of the tokens, in ascending order.
            alone: cosine distances between a text of nothing but the token and the anchor of each pair, shape
                (tokens, P).
        """
        self._pairs = pairs
        self._ids = ids
        # The numbers of copies in the order in which their distances become known.
        self._order = np.array(copies_order(pairs.settings.copies))
        series_shape = (len(ids), pairs.series_count)
        distances_without_copies = distances(pairs.without_copies, pairs.anchors)[Metric.COSINE]  # shape (P,)
        # Series are numbered pair by pair: with three placements, series 0, 1 and 2 belong to pair 0.
        # `np.repeat` therefore gives the value of a pair to each series of the pair.
        self.distances = np.full((*series_shape, pairs.settings.copies + 1), np.nan)
        self.distances[..., 0] = np.repeat(distances_without_copies, len(PLACEMENTS))
        self.alone = np.repeat(alone, len(PLACEMENTS), axis=1)
        self.known_counts = np.zeros(series_shape, dtype=np.intp)
        self.has_risen = np.zeros(series_shape, dtype=np.bool_)
        self.series_bounds = np.empty(series_shape)
        all_rows = np.arange(len(ids))
        self._update_bounds(all_rows)

    @property
    def upper_bounds(self) -> Floats:
        """Upper bound of each token's score, shape (tokens,).

        The bound is the mean of the bounds of all series (a series is one sentence pair with copies in one
        placement), weighted by placement. It equals the score if all distances of the token are known.
        """
        upper_bounds: Floats = self.series_bounds @ self._pairs.weights
        return upper_bounds

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        """Whether all distances of each token are known, shape (tokens,)."""
        complete: NDArray[np.bool_] = (self.known_counts == self._pairs.settings.copies).all(axis=1)
        return complete

    def add(self, frame: pl.DataFrame) -> None:
        """Add the distances in the rows of a `ScoringStage`, and update the upper bounds of the scores."""
        rows = np.searchsorted(self._ids, frame["token_id"].to_numpy())
        # For each measured text: the row of its token, its series (a pair and a placement), its number of
        # copies and its distance.
        row_of_text = np.repeat(rows, frame[_TEXT_INDICES].list.len().to_numpy())
        text_indices = frame[_TEXT_INDICES].explode().to_numpy()
        series_of_text, copies_of_text = self._pairs.series_and_copies(text_indices)
        distance_of_text = frame[Metric.COSINE.value].explode().to_numpy()
        self.distances[row_of_text, series_of_text, copies_of_text] = distance_of_text
        # ``+= 1`` would count several texts of a series once.
        np.add.at(self.known_counts, (row_of_text, series_of_text), 1)
        self._update_bounds(rows)

    def next_texts(self, rows: NDArray[np.intp], gains: Floats, limit: int) -> list[tuple[int, ...]]:
        """Choose the next texts to encode for the given tokens.

        At most one text is chosen from each series: the text with the next number of copies in the order of
        `copies_order`. If more than ``limit`` series have unknown distances, the chosen texts are those that
        are expected to lower the upper bound of the token's score most.

        Args:
            rows: row indices of the tokens.
            gains: the result of `expected_gains`.
            limit: maximum number of texts for each token.

        Returns:
            For each token, the indices of its next texts (see `ScoringPairs`), at most ``limit`` in total and
            at most one for each series that has unknown distances.
        """
        copies = self._pairs.settings.copies
        known_counts = self.known_counts[rows]
        has_unknown = known_counts < copies
        # Position, in `copies_order`, of the next text of each series. A series whose distances are all known
        # has no next text, but gets a valid position here; it is left out of the result.
        next_positions = np.minimum(known_counts, copies - 1)
        # The axes of ``gains``: position in `copies_order`; whether any known distance of the series rises;
        # series. The result has the shape (tokens, series).
        rises = self.has_risen[rows].astype(np.intp)
        expected_fractions = gains[next_positions, rises, np.arange(self._pairs.series_count)]
        decreases = expected_fractions * self.series_bounds[rows] * self._pairs.weights
        decreases = np.where(has_unknown, decreases, -1.0)  # series whose distances are all known come last
        # From here on, the arrays have the shape (tokens, chosen series).
        chosen_series = np.argsort(-decreases, axis=1, kind="stable")[:, :limit]
        next_copies = self._order[np.take_along_axis(next_positions, chosen_series, axis=1)]
        # A text index counts series by series, and within a series by the number of copies: with at most 8
        # copies, the text with 2 copies in series 1 has the index 1 * 8 + 2 - 1 = 9.
        text_indices = chosen_series * copies + next_copies - 1
        is_text_missing = np.take_along_axis(has_unknown, chosen_series, axis=1)
        return [
            tuple(indices_of_token[is_missing].tolist())
            for indices_of_token, is_missing in zip(text_indices, is_text_missing, strict=True)
        ]

    def _update_bounds(self, rows: NDArray[np.intp]) -> None:
        known_distances = self.distances[rows]
        constants = SCORE_CONSTANTS[Metric.COSINE]
        self.series_bounds[rows] = score_bounds(known_distances, self.alone[rows], constants)
        self.has_risen[rows] = has_risen(known_distances)


class _KnownDistances:
    """Encodes texts of tokens, and keeps the distances between their vectors and the anchors.

    The score of a token also rewards a large distance between the anchors and the token alone, that is, a
    text of nothing but the token. So this text is encoded for every token first.

    Attributes:
        tokens: the tokens, in order of id; "rows" below are indices of this list.
        pairs: the pairs that the tokens are scored on.
        state: the cosine distances that are known so far, and the upper bounds of the scores.
    """

    def __init__(self, job: Job[StdSettings], pairs: ScoringPairs, runner: CountedRunner) -> None:
        self.tokens = job.tokens
        self.pairs = pairs
        self._runner = runner
        self._ids = np.array([token.id for token in self.tokens], dtype=np.int64)
        # The gaps into which copies go if they are placed at random: for each token id, a path per carrier.
        walk = Walk.in_carriers(pairs.carriers, pairs.settings)
        self._paths = walk_vocabulary(job.settings.seed, job.vocabulary.available, self.tokens, walk)
        # For each metric, a column of lists: the distances of each token alone to the anchors.
        self._alone = runner(AloneStage(pairs), self.tokens, len(self.tokens))
        alone_by_cosine = np.array(self._alone[Metric.COSINE.value].to_list())  # shape (tokens, pairs)
        self.state = ScoringState(pairs, self._ids, alone_by_cosine)
        self._frames: list[pl.DataFrame] = []  # the rows of all scoring stages so far

    def add_all_texts(self, stage_name: str, rows: NDArray[np.intp]) -> None:
        if len(rows):
            self.add(stage_name, rows, [self.pairs.text_indices] * len(rows))

    def add(self, stage_name: str, rows: NDArray[np.intp], text_indices: Sequence[Sequence[int]]) -> None:
        """Encode the texts with the given indices of each token in ``rows``, and add their distances."""
        chosen = [self.tokens[row] for row in rows.tolist()]
        indices_by_id = {token.id: indices for token, indices in zip(chosen, text_indices, strict=True)}
        paths = {token.id: self._paths[token.id] for token in chosen}
        stage = ScoringStage(self.pairs, indices_by_id, paths, stage_name)
        frame = self._runner(stage, chosen, stage.text_count)
        self.state.add(frame)
        self._frames.append(frame)  # for `make_table`

    def make_table(self, sample: NDArray[np.intp]) -> pl.DataFrame:
        """Return the table that `score_tokens` describes; ``sample`` has the rows of the sampled tokens.

        A token has scores if all its distances are known. `state` has only the cosine distances, so the
        distances by all metrics are taken from the tables of the stages.
        """
        pairs = self.pairs
        is_complete = self.state.is_complete
        scored_rows = np.flatnonzero(is_complete)
        scored_ids = self._ids[scored_rows]
        measured = pl.concat(self._frames).filter(pl.col("token_id").is_in(scored_ids.tolist()))
        # For each measured text: its token (an index into scored_ids), its series (a pair and a placement)
        # and its number of copies.
        index_of_token = np.searchsorted(scored_ids, measured["token_id"].to_numpy())
        token_of_text = np.repeat(index_of_token, measured[_TEXT_INDICES].list.len().to_numpy())
        text_indices = measured[_TEXT_INDICES].explode().to_numpy()
        series_of_text, copies_of_text = pairs.series_and_copies(text_indices)
        distances_without_copies = distances(pairs.without_copies, pairs.anchors)  # one distance per pair
        columns = {"token_id": pl.Series(self._ids)}
        for metric in Metric:
            # All distances of the scored tokens, with 0, 1, 2, ... copies.
            by_series = np.empty((len(scored_ids), pairs.series_count, pairs.settings.copies + 1))
            by_series[..., 0] = np.repeat(distances_without_copies[metric], len(PLACEMENTS))
            distance_of_text = measured[metric.value].explode().to_numpy()
            by_series[token_of_text, series_of_text, copies_of_text] = distance_of_text
            # Series are numbered pair by pair, and within a pair by placement. Divide the axis of series into
            # an axis of pairs and an axis of placements.
            by_placement = by_series.reshape(len(scored_ids), len(pairs.carriers), len(PLACEMENTS), -1)
            alone_of_all = np.array(self._alone[metric.value].to_list())
            alone = alone_of_all[scored_rows]  # shape (scored tokens, pairs)
            # A token alone has no placement, so its distance counts the same in every placement: shape
            # (scored tokens, pairs, 1).
            scores = sticky_score(by_placement, alone[:, :, None], SCORE_CONSTANTS[metric])
            column = np.full(len(self._ids), np.nan)
            column[scored_rows] = weighted(scores, SCORING_WEIGHTS)
            columns[f"score_{metric}"] = pl.Series(column).fill_nan(None)
        bounds = np.where(is_complete, np.nan, self.state.upper_bounds)  # tokens with a score need no bound
        columns["score_at_most"] = pl.Series(bounds).fill_nan(None)
        columns["sampled"] = pl.Series(np.isin(np.arange(len(self._ids)), sample))
        return pl.DataFrame(columns)


def expected_gains(pairs: ScoringPairs, all_distances: Floats, alone: Floats) -> Floats:
    """Estimate how much each further text of a series lowers the upper bound of the score of the series.

    `ScoringState.next_texts` chooses the texts to encode next by this estimate.

    The estimate is a mean over sampled tokens. The upper bounds of the sampled tokens are computed as if the
    distances became known one after another, in the order of `copies_order`. The decrease in the bound per
    text depends on how many texts are added. The mean decrease is therefore computed for every possible
    number of added texts, and the largest of these means is returned. If there are too few tokens for the
    mean of a series, the mean over all series is used.

    Args:
        pairs: the pairs that tokens are scored on.
        all_distances: distances of the sampled tokens, all of them known, shape
            (tokens, series, copies + 1).
        alone: distances between the sampled tokens alone and the anchors, shape (tokens, series).

    Returns:
        The estimated decrease per text, as a fraction of the upper bound, shape (copies, 2, series). The axes
        are the number of known distances, not counting the distance with 0 copies; whether any known distance
        is larger than the previous known distance (0 or 1); and the series.
    """
    order = copies_order(pairs.settings.copies)
    constants = SCORE_CONSTANTS[Metric.COSINE]
    # bounds[n] holds the upper bounds if n distances are known, and risen[n] holds whether any of the n
    # distances is larger than the previous known distance. Both arrays have shape (tokens, series). NaN is an
    # unknown distance; the distance with 0 copies is always known.
    known_distances = all_distances.copy()
    known_distances[..., 1:] = np.nan
    bounds = [score_bounds(known_distances, alone, constants)]
    risen = [has_risen(known_distances)]
    for copies in order:
        known_distances[..., copies] = all_distances[..., copies]
        bounds.append(score_bounds(known_distances, alone, constants))
        risen.append(has_risen(known_distances))
    gains = np.empty((len(order), 2, pairs.series_count))
    for known_count in range(len(order)):
        decreases_per_text = []
        for more_texts in range(1, len(order) - known_count + 1):
            decrease = 1 - bounds[known_count + more_texts] / bounds[known_count]  # a fraction of the bound
            decreases_per_text.append(decrease / more_texts)
        # Average separately over the tokens with a known distance that is larger than the previous one, and
        # over all other tokens. ``is_averaged`` has shape (tokens, series), and ``averaged_decreases`` has
        # shape (more texts, tokens, series).
        for any_has_risen in (False, True):
            is_averaged = risen[known_count] == any_has_risen
            averaged_decreases = np.stack(decreases_per_text) * is_averaged  # 0 for all other tokens
            token_counts = is_averaged.sum(axis=0)  # of each series
            # Means for each number of further texts: shape (more texts, series), and over all series, shape
            # (more texts,). Divide by at least 1, because the series may have no such tokens.
            means_of_series = averaged_decreases.sum(axis=1) / np.maximum(token_counts, 1)
            overall_means = averaged_decreases.sum(axis=(1, 2)) / max(1, token_counts.sum())
            # Choose the number of further texts with the largest mean decrease per text.
            has_enough = token_counts >= _LEAST_OBSERVED
            gains[known_count, int(any_has_risen)] = np.where(
                has_enough, means_of_series.max(axis=0), overall_means.max()
            )
    return gains


def expected_texts(pairs: ScoringPairs, token_count: int) -> int:
    """Estimate how many texts `score_tokens` encodes: tokens alone, a sample in all texts, then the rest."""
    is_sampled = token_count >= _SAMPLED_FROM * SAMPLE
    sampled = SAMPLE if is_sampled else token_count
    texts_alone = token_count
    texts_of_sample = sampled * len(pairs.text_indices)  # all texts of these tokens
    return texts_alone + texts_of_sample + _expect_texts_after_sample(pairs, token_count - sampled)


def _expect_texts_after_sample(pairs: ScoringPairs, token_count: int) -> int:
    # The bounds save texts, unless the user asks for the scores of all tokens.
    share = 1.0 if pairs.settings.scores is Scores.ALL else NEEDED_SHARE
    return round(token_count * len(pairs.text_indices) * share)


def score_tokens(
    job: Job[StdSettings],
    pairs: ScoringPairs,
    runner: CountedRunner,
    validation_texts: int = 0,
    sample_size: int = SAMPLE,
) -> pl.DataFrame:
    """Score tokens exactly, or find upper bounds that rule them out as candidates.

    The score of a token is a weighted mean over its series, the combinations of a pair and a placement. An
    upper bound of the score falls as more distances of the series become known. A token is ruled out as soon
    as its upper bound is below the scores of the candidates.

    First, all texts of a random sample of tokens are encoded. Each later round encodes a few texts of every
    token that may still be a candidate (see `_find_rows_to_score`). If the setting ``scores`` is "all", or
    there are few tokens, all texts of all tokens are encoded instead.

    Args:
        job: provides the model, the tokens in order of id, and the settings.
        pairs: the pairs that tokens are scored on.
        runner: runs the stages.
        validation_texts: number of texts that validation will encode. The remaining time that is announced
            to the user includes the time for these texts.
        sample_size: number of random tokens that are scored first, with all their texts.

    Returns:
        One row per token with the columns ``token_id``; ``score_cosine``, ``score_euclidean`` and
        ``score_manhattan``, which are null if the score is not exact; ``score_at_most``, an upper bound of
        the cosine score, which is null if the score is exact; and ``sampled``, whether the token is in the
        sample.
    """
    known = _KnownDistances(job, pairs, runner)
    token_count = len(job.tokens)
    sample = _draw_rows_to_score_first(token_count, sample_size, job.settings.seed)
    known.add_all_texts("sample", sample)
    if len(sample) < token_count:
        scoring_texts = _expect_texts_after_sample(pairs, token_count - len(sample))
        runner.announce(scoring_texts, validation_texts)
    if job.settings.scores is Scores.ALL:
        known.add_all_texts("score", np.flatnonzero(~known.state.is_complete))
    else:
        _add_texts_of_candidates(known, sample)
    return known.make_table(sample)


def _draw_rows_to_score_first(token_count: int, sample_size: int, seed: int) -> NDArray[np.intp]:
    # Returns the ascending indices of a random sample of tokens; of all tokens if they are few.
    if token_count < _SAMPLED_FROM * sample_size:
        return np.arange(token_count)
    generator = np.random.default_rng([seed, _SAMPLE_KEY])
    return np.sort(generator.choice(token_count, sample_size, replace=False))


def _add_texts_of_candidates(known: _KnownDistances, sample: NDArray[np.intp]) -> None:
    """Encode texts in rounds, until the scores of all tokens that may be candidates are exact."""
    state = known.state
    pairs = known.pairs
    candidate_share = pairs.settings.candidate_share
    # The texts that are expected to lower the upper bounds most are encoded first.
    gains = expected_gains(pairs, state.distances[sample], state.alone[sample])
    # Estimate from the sample which score a candidate must reach. All distances of the sample are known, so
    # the upper bounds are the scores themselves.
    likely_share = _LIKELY_SHARE * candidate_share
    likely_threshold = float(np.quantile(state.upper_bounds[sample], 1 - likely_share))
    # The exact threshold for candidates is computed from this many of the best scores.
    scores_needed = scores_behind_threshold(len(known.tokens), candidate_share)
    round_number = 1
    rows = _find_rows_to_score(state, scores_needed, likely_threshold)
    while len(rows):
        # The fewer tokens are left, the more texts of each are encoded, so that a round fills batches.
        texts_per_token = min(_MOST_TEXTS, math.ceil(_ROUND_TEXTS / len(rows)))
        if round_number == 1:
            # Encode one text of every series. With fewer texts, no upper bound would fall below the
            # threshold.
            texts_per_token = pairs.series_count
        next_texts = state.next_texts(rows, gains, texts_per_token)
        known.add(f"score-{round_number:03d}", rows, next_texts)
        round_number += 1
        rows = _find_rows_to_score(state, scores_needed, likely_threshold)


def _find_rows_to_score(state: ScoringState, scores_needed: int, likely_threshold: float) -> NDArray[np.intp]:
    """Return the rows of tokens without an exact score that may be among the ``scores_needed`` best.

    Return no rows if the ``scores_needed`` best scores are known exactly.
    """
    upper_bounds = state.upper_bounds
    is_complete = state.is_complete
    # The exact scores, best first: once all distances of a token are known, its upper bound is its score.
    exact_scores = np.sort(upper_bounds[is_complete])[::-1]
    # With fewer exact scores than needed, the lowest needed score is unknown and must not decide.
    lowest_needed_score = -np.inf
    if len(exact_scores) >= scores_needed:
        lowest_needed_score = exact_scores[scores_needed - 1]
    # ``likely_threshold`` is lowered until `tokens_at_a_time` upper bounds reach it, and raised to the lowest
    # score needed.
    tokens_at_a_time = min(len(upper_bounds), math.ceil(_AT_A_TIME * scores_needed))
    bound_of_last_token = np.sort(upper_bounds)[::-1][tokens_at_a_time - 1]
    threshold = max(lowest_needed_score, min(likely_threshold, bound_of_last_token))
    return np.flatnonzero(~is_complete & (upper_bounds >= threshold - _SLACK))
