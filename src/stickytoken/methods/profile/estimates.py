"""Estimate the erased share of each token, with an interval, from the measurements of all rounds.

What copies of every token do to a text, its effects, goes into a file for commands that use the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.intervals import Intervals
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.base import Job
from stickytoken.methods.probes import Floats
from stickytoken.methods.profile.documents import InDocuments
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.verdict import RuleInputs
from stickytoken.methods.statistics import Effects, RelativeEffects, beyond_ordinary
from stickytoken.settings.profile import ProfileSettings

# If the variance of an effect over tokens is at most this fraction of its mean square, the effects differ
# only by rounding errors.
_ROUNDING = 1e-20
# Number of tokens to process at a time, which limits the memory needed for a large vocabulary.
_BLOCK_ROWS = 8192

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class RoundResults:
    """What one round measured for T tokens in K carriers.

    Attributes:
        effects: contraction and pull of each token, fitted to all carriers together.
        contractions: contraction of each token in each carrier, shape (T, K).
        copies_seen: number of copies that the tokenizer recognized in each text, shape (T, K); None if they
            were not counted.
    """

    effects: Effects
    contractions: Floats
    copies_seen: NDArray[np.int64] | None = None

    @property
    def ids(self) -> Ids:
        """The token ids, ascending, shape (T,)."""
        return self.effects.ids

    def rows_of(self, ids: Ids) -> NDArray[np.intp]:
        """Return the row indices of the tokens with these ids, all of which the round must have measured."""
        return np.searchsorted(self.ids, ids)

    def in_carriers(self, carriers: Sequence[int]) -> RoundResults:
        """Return the measurements in the carriers with these indices.

        ``effects`` still contains the values that were fitted to all carriers.
        """
        columns = np.array(carriers, dtype=np.intp)
        return replace(
            self,
            contractions=self.contractions[:, columns],
            copies_seen=None if self.copies_seen is None else self.copies_seen[:, columns],
        )


def read_measurements(rows: pl.DataFrame) -> RoundResults:
    """Convert the stored rows of a round, as `ProfileStage.measure` returns them, to sorted arrays."""
    ordered = rows.sort("token_id")
    return RoundResults(
        effects=Effects(
            ids=ordered["token_id"].to_numpy().astype(np.int64),
            contraction=ordered["contraction"].to_numpy(writable=True),
            pull=_read_matrix(ordered, "pull"),
        ),
        contractions=_read_matrix(ordered, "contractions").astype(np.float64),
        copies_seen=_read_matrix(ordered, "seen") if "seen" in ordered.columns else None,
    )


def _read_matrix(table: pl.DataFrame, column: str) -> NDArray[Any]:
    # With a large vocabulary, lists of Python numbers would take a gigabyte.
    flat = table[column].explode().to_numpy(writable=True)
    list_length = len(flat) // max(1, len(table))  # the same for all lists; also without rows
    return flat.reshape(len(table), list_length)


def join_tokens(first: RoundResults, second: RoundResults) -> RoundResults:
    """Return the measurements of both sets of tokens, in the same carriers, sorted by token id."""
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def join(first_rows: NDArray[Any], second_rows: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([first_rows, second_rows])[order])

    contraction = join(first.effects.contraction, second.effects.contraction)
    pull = join(first.effects.pull, second.effects.pull)
    copies_seen = None
    if first.copies_seen is not None and second.copies_seen is not None:
        copies_seen = join(first.copies_seen, second.copies_seen)
    return RoundResults(
        effects=Effects(ids[order], contraction, pull),
        contractions=join(first.contractions, second.contractions),
        copies_seen=copies_seen,
    )


@dataclass(frozen=True)
class MeasuredJob:
    """The measurements from all of a run's rounds, and the data that is needed to judge the tokens.

    Attributes:
        job: model, vocabulary, tokens and settings of the run.
        plan: carriers and pilots of the run.
        screening_carriers: plan indices of the carriers into which all tokens were inserted.
        screened: measurements of all tokens in the screening carriers.
        confirmed: measurements of the pilots and the selected tokens in all other carriers.
        unconfirmed: number of tokens that may erase enough but were not confirmed, because the budget was
            used up.
        vector_deviations: how unusual each token vector is, keyed by token id; None if token vectors cannot
            be compared.
        in_documents: what copies do in documents; None if no token was measured there.
    """

    job: Job[ProfileSettings]
    plan: ProfilePlanRecord
    screening_carriers: list[int]
    screened: RoundResults
    confirmed: RoundResults
    unconfirmed: int
    vector_deviations: Mapping[int, float] | None
    in_documents: InDocuments | None = None


class TokenNumbers(NamedTuple):
    """The results of T tokens. The results of a token come from the last round that measured the token.

    Attributes:
        measures: the measures that the rule uses.
        contraction: share of a text that copies of the token erase, shape (T,).
        ordinary_contraction: share of a text that copies of the ordinary token erase.
        carrier_counts: number of carriers from which the erased share was computed, shape (T,).
    """

    measures: RuleInputs
    contraction: Floats
    ordinary_contraction: float
    carrier_counts: NDArray[np.int64]

    def measures_of(self, ids: Ids) -> RuleInputs:
        """Return the measures of the tokens with these ids."""
        rows = np.searchsorted(self.measures.ids, ids)
        return RuleInputs(
            ids=ids,
            erased=self.measures.erased.of_rows(rows),
            push=self.measures.push.of_rows(rows),
            vector_deviation=self.measures.vector_deviation[rows],
            confirmed=self.measures.confirmed[rows],
        )


def estimate(measured: MeasuredJob) -> TokenNumbers:
    """Estimate the erased share of every token relative to the ordinary token, with intervals.

    The contraction of a token is the share of a text that its copies erase. Only what exceeds the ordinary
    token's contraction counts as erased; see `as_erased_shares`.

    If a token was measured in the confirming carriers, its estimate is the mean over the confirming carriers,
    with a Student interval. If a token was measured only in the screening carriers, its estimate is the mean
    over the screening carriers. The width of the interval is derived from the errors of the pilots' screening
    estimates, which are known because the pilots were also measured in the confirming carriers.

    Returns:
        The results of all screened tokens, in ascending order of token id.
    """
    screened = measured.screened
    confirmed = measured.confirmed
    confidence = measured.job.settings.confidence
    pilots = np.array(measured.plan.pilots, dtype=np.int64)
    is_pilot = np.isin(confirmed.ids, pilots)
    # Contractions minus the ordinary token's, and the ordinary token's own.
    in_confirming, ordinary_contraction = compare_with_ordinary(confirmed.contractions, is_pilot, confidence)
    beyond_ordinary_token = _estimate_from_screening(
        screened.contractions, screened.rows_of(pilots), in_confirming.value[is_pilot], confidence
    )
    # The confirming carriers give better estimates, which replace those from the screening carriers.
    confirmed_rows = screened.rows_of(confirmed.ids)
    beyond_ordinary_token.value[confirmed_rows] = in_confirming.value
    beyond_ordinary_token.low[confirmed_rows] = in_confirming.low
    beyond_ordinary_token.high[confirmed_rows] = in_confirming.high

    is_confirmed = np.zeros(len(screened.ids), dtype=np.bool_)
    is_confirmed[confirmed_rows] = True
    screening_count = screened.contractions.shape[1]
    carrier_counts = np.full(len(screened.ids), screening_count)
    carrier_counts[confirmed_rows] = confirmed.contractions.shape[1]
    measures = RuleInputs(
        ids=screened.ids,
        erased=as_erased_shares(beyond_ordinary_token, ordinary_contraction),
        push=push_of(screened.ids, measured.in_documents),
        vector_deviation=deviations_of(screened.ids, measured.vector_deviations),
        confirmed=is_confirmed,
    )
    contraction = beyond_ordinary_token.value + ordinary_contraction
    return TokenNumbers(measures, contraction, ordinary_contraction, carrier_counts)


def compare_with_ordinary(
    contractions: Floats, is_random: NDArray[np.bool_], confidence: float
) -> RelativeEffects:
    """Return how much more of a text copies of each token erase than copies of the ordinary token.

    Args:
        contractions: contraction of each token in each carrier, shape (T, K).
        is_random: whether each token was drawn at random, shape (T,); the random tokens' median is the
            ordinary token.
        confidence: coverage of the two-sided intervals.

    Raises:
        InputError: there are too few random tokens, all of them do the same, or their copies leave too little
            of a text to compare.
    """
    _require_different_effects(contractions[is_random])
    relative = beyond_ordinary(contractions, is_random, confidence)
    _require_enough_left(relative, is_random)
    return relative


def as_erased_shares(beyond: Intervals, ordinary: float) -> Intervals:
    """Return the erased shares (k - k0) / (1 - k0) of tokens, at most 1.

    Copies may even reverse what a text means, which makes k larger than 1. No more than everything is erased.

    Args:
        beyond: the contractions beyond the ordinary token's, k - k0.
        ordinary: contraction k0 of the ordinary token, below 1.
    """
    shares = beyond.divided_by(1 - ordinary)
    return Intervals(*(np.minimum(ends, 1.0) for ends in shares))


def push_of(ids: Ids, in_documents: InDocuments | None) -> Intervals:
    """Return the push of each token, or NaN if it was not measured in documents. ``ids`` are ascending."""
    value, low, high = np.full((3, len(ids)), np.nan)
    if in_documents is not None:
        rows = np.searchsorted(ids, in_documents.ids)
        value[rows] = in_documents.push.value
        low[rows] = in_documents.push.low
        high[rows] = in_documents.push.high
    return Intervals(value, low, high)


def _require_different_effects(random_contractions: Floats) -> None:
    # Contractions of the random tokens, shape (tokens, carriers).
    if len(random_contractions) < 2:
        raise InputError(
            f"the vocabulary has {len(random_contractions)} entries that can occur in text: at least two are "
            "needed, because tokens are compared with random ones; use another model"
        )
    deviations = random_contractions - random_contractions.mean(axis=0)
    if float((deviations**2).mean()) <= _ROUNDING * float((random_contractions**2).mean()):
        raise InputError(
            "all tokens change the vectors of texts by the same amount: the model does not tell texts apart; "
            "check that it is loaded correctly"
        )


def _require_enough_left(relative: RelativeEffects, is_random: NDArray[np.bool_]) -> None:
    # The interval of a random token must be smaller than what ordinary copies leave. Otherwise, no share
    # between 0 and 1 can be told from 0, and those above it are noise.
    left = 1 - relative.ordinary
    half_width = float(np.median((relative.estimates.high - relative.estimates.value)[is_random]))
    if left <= half_width:
        raise InputError(
            f"copies of an ordinary token leave {left:.3f} of a text, and the error of a measurement is "
            f"{half_width:.3f}, so what other tokens erase cannot be told: insert fewer copies or use longer "
            "sentences; if that does not help, check that the model is loaded correctly"
        )


def _estimate_from_screening(
    values: Floats, pilot_rows: NDArray[np.intp], confirmed_pilots: Floats, confidence: float
) -> Intervals:
    """Estimate how much more of a text each token erases than the ordinary token, from few carriers.

    ``values`` has the contraction of each token in each screening carrier, shape (T, K), and ``pilot_rows``
    the rows of the pilots. ``confirmed_pilots`` has, for each pilot, its contraction minus the ordinary
    token's in the confirming carriers.

    Contractions may be larger in the screening carriers than in the confirming carriers, which would make the
    estimates too large. So the estimates are scaled until they vary over the pilots as much as
    ``confirmed_pilots``. All tokens have the same standard error: the root mean square difference between the
    estimates for the pilots and ``confirmed_pilots``.
    """
    means = values.mean(axis=1)
    beyond_median = means - float(np.median(means[pilot_rows]))
    spread_of_pilots = float(beyond_median[pilot_rows].std())
    if spread_of_pilots > 0:
        beyond_median *= float(confirmed_pilots.std()) / spread_of_pilots
    errors_of_pilots = beyond_median[pilot_rows] - confirmed_pilots
    standard_error = float(np.sqrt(np.mean(errors_of_pilots**2)))
    normal_quantile = float(scipy.special.ndtri((1 + confidence) / 2))
    half_width = normal_quantile * standard_error
    return Intervals(
        value=beyond_median,
        low=beyond_median - half_width,
        high=beyond_median + half_width,
    )


def deviations_of(ids: Ids, deviation_by_id: Mapping[int, float] | None) -> Floats:
    """Return the vector deviation of each token, or NaN if the token has none."""
    if deviation_by_id is None:
        return np.full(len(ids), np.nan)
    return np.array([deviation_by_id.get(token_id, np.nan) for token_id in ids.tolist()])


def _iterate_blocks(matrix: NDArray[Any]) -> Iterator[NDArray[Any]]:
    # A matrix without rows is one block, so that there is something to concatenate.
    for start in range(0, max(1, len(matrix)), _BLOCK_ROWS):
        yield matrix[start : start + _BLOCK_ROWS]


EFFECTS_FILE = "effects.parquet"
AXES_FILE = "effects_axes.parquet"
EFFECTS_COLUMNS = ("token_id", "contraction", "pull")
# Maximum size of the matrix of pulls in EFFECTS_FILE, in bytes. The pull of a token is the vector that its
# copies add to a text, and the matrix has one row per token. A larger matrix is projected onto fewer axes:
# for 150,000 tokens and 4,096 dimensions, 1,789 axes (44%) remain. On four other corpora, the Spearman
# correlation between lifts predicted with 44% of the axes and lifts predicted with all axes is at least 0.998
# for all-mpnet-base-v2 and at least 0.962 for all-MiniLM-L6-v2.
MOST_BYTES = 512 * 2**20


def write_effects(folder: ResultFolder, screened: RoundResults, most_bytes: int = MOST_BYTES) -> None:
    """Write the contraction and pull of every token, as fitted in the screening carriers.

    If the pulls need more than ``most_bytes``, they are projected onto as many orthonormal axes as fit:
    `AXES_FILE` contains the axes, and the column ``pull`` contains the coordinates of each pull on the axes.
    """
    pull = screened.effects.pull
    bytes_per_axis = np.dtype(np.float16).itemsize * len(pull)
    most_axes = max(1, most_bytes // bytes_per_axis)
    if most_axes < pull.shape[1]:
        axes = _compute_main_axes(pull, most_axes)
        folder.write_table(AXES_FILE, pl.DataFrame({"axis": axes}))
        coordinates = [
            (block.astype(np.float32) @ axes.T).astype(np.float16) for block in _iterate_blocks(pull)
        ]
        pull = np.concatenate(coordinates)
    table = pl.DataFrame(
        {
            "token_id": screened.ids,
            "contraction": screened.effects.contraction.astype(np.float32),
            "pull": pull.astype(np.float16),
        }
    )
    folder.write_table(EFFECTS_FILE, table)


def _compute_main_axes(vectors: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Orthonormal axes, as rows, on which the vectors vary most around the zero vector."""
    products = np.zeros((vectors.shape[1], vectors.shape[1]))
    for block in _iterate_blocks(vectors):
        block_float32 = block.astype(np.float32)
        products += block_float32.T @ block_float32
    _, axes = np.linalg.eigh(products)  # one axis per column, in ascending order of its eigenvalue
    main_axes = axes[:, ::-1][:, :count]  # the largest eigenvalues first
    return np.ascontiguousarray(main_axes.T, dtype=np.float32)


def read_effects(path: Path) -> Effects:
    """Read the contraction and pull of every token from a run folder, as `write_effects` wrote them.

    Returns:
        The effects of all screened tokens, in ascending order of token id. If the pulls were projected onto a
        few axes, they are converted back to vectors of the model's dimension.
    """
    folder = ResultFolder(path)
    table = folder.read_table(EFFECTS_FILE, EFFECTS_COLUMNS)
    rows = table.sort("token_id")
    pull: NDArray[np.float32] = rows["pull"].to_numpy().astype(np.float32)
    if (path / AXES_FILE).is_file():  # the column ``pull`` contains coordinates on the stored axes
        axes = folder.read_table(AXES_FILE, ("axis",))["axis"].to_numpy()
        pull = pull @ axes
    contraction = rows["contraction"].to_numpy().astype(np.float64)
    return Effects(rows["token_id"].to_numpy(), contraction, pull)
