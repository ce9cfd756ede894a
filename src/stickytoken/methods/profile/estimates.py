"""Estimate the lift and erased share of each token, with intervals, from the measurements of all rounds."""

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
from stickytoken.measurement import ResultFolder
from stickytoken.methods.base import Job
from stickytoken.methods.probes import Vector
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.verdict import LIFTED_SHARE, Measures
from stickytoken.methods.statistics import Effects, Estimates, TokenEffects, beyond_ordinary, present_mean
from stickytoken.settings.profile import ProfileSettings

# If the variance of the lifts over tokens is at most this fraction of their mean square, the lifts differ
# only by rounding errors.
_ROUNDING = 1e-20
# Number of tokens to process at a time, which limits the memory needed for a large vocabulary.
_BLOCK_ROWS = 8192

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """What one round measured for T tokens in K carriers, which were compared with anchors in G groups.

    Attributes:
        ids: token ids, ascending, shape (T,).
        lifts: mean rise of the similarities to unrelated anchors, as a difference of cosines, shape (T, K).
        anchor_group_lifts: lift on each group of anchors, shape (T, K, G); NaN where a carrier has no
            unrelated anchor in the group.
        effects: contraction and pull of each token, fitted to all carriers together.
        contractions: contraction of each token in each carrier, shape (T, K).
        copies_seen: number of copies that the tokenizer recognized in each text, shape (T, K); None if they
            were not counted.
    """

    ids: Ids
    lifts: Vector
    anchor_group_lifts: NDArray[np.float32]
    effects: Effects
    contractions: Vector
    copies_seen: NDArray[np.int64] | None = None

    def rows_of(self, ids: Ids) -> NDArray[np.intp]:
        """Return the row indices of the tokens with these ids, all of which the round must have measured."""
        return np.searchsorted(self.ids, ids)

    def in_carriers(self, carriers: Sequence[int]) -> Measurements:
        """Return the measurements in the carriers with these indices.

        ``effects`` still contains the values that were fitted to all carriers.
        """
        columns = np.array(carriers, dtype=np.intp)
        return replace(
            self,
            lifts=self.lifts[:, columns],
            anchor_group_lifts=self.anchor_group_lifts[:, columns],
            contractions=self.contractions[:, columns],
            copies_seen=None if self.copies_seen is None else self.copies_seen[:, columns],
        )

    def mean_anchor_group_lifts(self) -> Vector:
        """Return the mean over the carriers of the lift on each group of anchors, shape (T, G).

        NaN values are ignored. The mean is NaN if all its values are NaN.
        """
        return present_mean(self.anchor_group_lifts.astype(np.float64).transpose(1, 0, 2))


def measurements(rows: pl.DataFrame, carrier_count: int) -> Measurements:
    """Convert the stored rows of a round to arrays that are sorted by token id.

    Args:
        rows: one row for each of T tokens, with the columns of `ProfileStage.measure_all` and perhaps the
            column ``seen``. The columns ``lifts``, ``contractions`` and ``seen`` hold lists with one value
            per carrier. The column ``groups`` holds lists with one value per carrier and group of
            anchors, carrier by carrier. The column ``pull`` holds vectors.
        carrier_count: number of carriers K.
    """
    ordered = rows.sort("token_id")
    ids = ordered["token_id"].to_numpy().astype(np.int64)
    contraction = ordered["contraction"].to_numpy(writable=True)
    return Measurements(
        ids=ids,
        lifts=_matrix(ordered, "lifts"),
        anchor_group_lifts=_matrix(ordered, "groups").reshape(len(ids), carrier_count, -1),
        effects=Effects(contraction, _matrix(ordered, "pull")),
        contractions=_matrix(ordered, "contractions").astype(np.float64),
        copies_seen=_matrix(ordered, "seen") if "seen" in ordered.columns else None,
    )


def _matrix(table: pl.DataFrame, column: str) -> NDArray[Any]:
    """Return a column of equally long lists as a matrix with one row per list."""
    # With a large vocabulary, lists of Python numbers would take a gigabyte.
    flat = table[column].explode().to_numpy(writable=True)
    return flat.reshape(len(table), len(flat) // max(1, len(table)))


def joined(first: Measurements, second: Measurements) -> Measurements:
    """Combine the measurements of two token sets in the same carriers, and sort them by token id."""
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def join(first_rows: NDArray[Any], second_rows: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([first_rows, second_rows])[order])

    contraction = join(first.effects.contraction, second.effects.contraction)
    pull = join(first.effects.pull, second.effects.pull)
    copies_seen = None
    if first.copies_seen is not None and second.copies_seen is not None:
        copies_seen = join(first.copies_seen, second.copies_seen)
    return Measurements(
        ids=ids[order],
        lifts=join(first.lifts, second.lifts),
        anchor_group_lifts=join(first.anchor_group_lifts, second.anchor_group_lifts),
        effects=Effects(contraction, pull),
        contractions=join(first.contractions, second.contractions),
        copies_seen=copies_seen,
    )


@dataclass(frozen=True)
class Measured:
    """The measurements from all of a run's rounds, and the data that is needed to judge the tokens.

    Attributes:
        job: model, vocabulary, tokens and settings of the run.
        plan: carriers, anchors and pilots of the run.
        screening_carriers: plan indices of the carriers into which all tokens were inserted.
        screened: measurements of all tokens in the screening carriers.
        confirmed: measurements of the pilots and the selected tokens in all other carriers.
        unconfirmed: number of tokens that may reach a threshold but were not confirmed, because the budget
            was used up.
        vector_deviations: how unusual each token vector is, keyed by token id; None if token vectors cannot
            be compared.
    """

    job: Job[ProfileSettings]
    plan: ProfilePlanRecord
    screening_carriers: list[int]
    screened: Measurements
    confirmed: Measurements
    unconfirmed: int
    vector_deviations: Mapping[int, float] | None


class TokenNumbers(NamedTuple):
    """The results of T tokens. The results of a token come from the last round that measured the token.

    Attributes:
        measures: the measures that the rule uses.
        ordinary_lift: lift of the ordinary token, as a difference of cosines.
        ordinary_contraction: share of a text that copies of the ordinary token erase.
        kind_lifts: lift on each kind of text, relative to the ordinary token, in standard deviations of the
            similarities to that kind, shape (T, kinds).
        texts: number of texts from which the results were computed, shape (T,).
    """

    measures: Measures
    ordinary_lift: float
    ordinary_contraction: float
    kind_lifts: Vector
    texts: NDArray[np.int64]

    def measures_of(self, ids: Ids) -> Measures:
        """Return the measures of the tokens with these ids."""
        rows = np.searchsorted(self.measures.ids, ids)
        return Measures(
            ids=ids,
            lift=self.measures.lift.of_rows(rows),
            erased=self.measures.erased.of_rows(rows),
            vector_deviation=self.measures.vector_deviation[rows],
            confirmed=self.measures.confirmed[rows],
            kinds_lifted=self.measures.kinds_lifted[rows],
            kinds=self.measures.kinds,
        )


def estimate(measured: Measured) -> TokenNumbers:
    """Estimate the lift and erased share of every token relative to the ordinary token, with intervals.

    If a token was measured in the confirming carriers, its estimate is the mean over the confirming carriers,
    with a Student interval. If a token was measured only in the screening carriers, its estimate is the mean
    over the screening carriers. The width of the interval is derived from the errors of the pilots' screening
    estimates, which are known because the pilots were also measured in the confirming carriers.

    Returns:
        The results of all screened tokens, in ascending order of token id.
    """
    plan = measured.plan
    screened = measured.screened
    confirmed = measured.confirmed
    confidence = measured.job.settings.confidence
    pilots = np.array(plan.pilots, dtype=np.int64)
    is_pilot = np.isin(confirmed.ids, pilots)
    _require_different_lifts(confirmed.lifts[is_pilot])

    # Row indices, in ``screened``, of the confirmed tokens and of the pilots. All pilots are confirmed.
    confirmed_rows = screened.rows_of(confirmed.ids)
    pilot_rows = screened.rows_of(pilots)

    def over_all_tokens(confirmed_estimates: Estimates, screened_values: Vector, unit: float) -> Estimates:
        """Return the estimates of one effect for all screened tokens, in order of id, divided by ``unit``.

        ``confirmed_rows`` and ``pilot_rows`` are row indices of screened tokens. ``is_pilot`` is a mask of
        the confirmed tokens.

        For a confirmed token, the estimate is taken from ``confirmed_estimates``, and is already relative to
        the ordinary token. For a token that was only screened, `_screen_estimates` computes the estimate from
        the token's values in the screening carriers (``screened_values``), relative to the pilots' median.
        """
        confirmed_pilots = confirmed_estimates.value[is_pilot]
        # The pilots were measured in all carriers, so their confirmed estimates show how large the errors of
        # estimates from the screening carriers are.
        estimates = _screen_estimates(screened_values, pilot_rows, confirmed_pilots, confidence)
        estimates.value[confirmed_rows] = confirmed_estimates.value
        estimates.low[confirmed_rows] = confirmed_estimates.low
        estimates.high[confirmed_rows] = confirmed_estimates.high
        return estimates.divided_by(unit)

    # Repeated calls to a server give slightly different cosines, which makes lifts less exact.
    least_variance = plan.call_noise**2
    confirmed_lift = beyond_ordinary(confirmed.lifts, is_pilot, confidence, least_variance)
    confirmed_contraction = beyond_ordinary(confirmed.contractions, is_pilot, confidence)
    # The unit of lifts is the standard deviation of the similarities.
    lift = over_all_tokens(confirmed_lift.estimates, screened.lifts, plan.similarity_spread)
    # The erased share is (k - k0) / (1 - k0), where k0 is the contraction of the ordinary token. The
    # estimates are already k - k0.
    left_by_ordinary = max(1 - confirmed_contraction.ordinary, np.finfo(float).tiny)
    erased = over_all_tokens(confirmed_contraction.estimates, screened.contractions, left_by_ordinary)

    is_confirmed = np.zeros(len(screened.ids), dtype=np.bool_)
    is_confirmed[confirmed_rows] = True
    texts = np.full(len(screened.ids), screened.lifts.shape[1])  # number of carriers of the last round
    texts[confirmed_rows] = confirmed.lifts.shape[1]

    anchor_groups = plan.groups
    kind_indices = [index for index, anchor_group in enumerate(anchor_groups) if anchor_group.kind]
    kind_spreads = np.array([anchor_groups[index].spread for index in kind_indices])
    kind_lifts = _kind_lifts(screened, pilots, kind_indices, kind_spreads)
    kind_lifts[confirmed_rows] = _kind_lifts(confirmed, pilots, kind_indices, kind_spreads)
    # A token lifts a kind of text if it reaches this share of the threshold for the lift.
    smallest_kind_lift = LIFTED_SHARE * measured.job.settings.smallest_lift
    kinds_lifted = (kind_lifts >= smallest_kind_lift).sum(axis=1)  # NaN counts as not lifted

    measures = Measures(
        ids=screened.ids,
        lift=lift,
        erased=erased,
        vector_deviation=_deviations_of(screened.ids, measured.vector_deviations),
        confirmed=is_confirmed,
        kinds_lifted=kinds_lifted,
        kinds=len(kind_indices),
    )
    return TokenNumbers(
        measures=measures,
        ordinary_lift=confirmed_lift.ordinary,
        ordinary_contraction=confirmed_contraction.ordinary,
        kind_lifts=kind_lifts,
        texts=texts,
    )


def _require_different_lifts(pilot_lifts: Vector) -> None:
    """Raise an InputError if fewer than two pilots were measured, or if all pilots have the same lifts."""
    if len(pilot_lifts) < 2:
        raise InputError(
            f"the vocabulary has {len(pilot_lifts)} entries that can occur in text: at least two are needed, "
            "because tokens are compared with random ones; use another model"
        )
    deviations = pilot_lifts - pilot_lifts.mean(axis=0)
    if float((deviations**2).mean()) <= _ROUNDING * float((pilot_lifts**2).mean()):
        raise InputError(
            "all tokens change the similarities of texts by the same amount: the model does not tell texts "
            "apart; check that it is loaded correctly"
        )


def _screen_estimates(
    values: Vector, pilot_rows: NDArray[np.intp], confirmed_pilots: Vector, confidence: float
) -> Estimates:
    """Estimate the effect of each token from the few screening carriers.

    Effects may be larger in the screening carriers than in the confirming carriers, which would make the
    estimates too large. The means over the screening carriers are therefore scaled so that their standard
    deviation over the pilots is the same as in the confirming carriers. The standard error is the same for
    all tokens: the root mean square difference, over the pilots, between the scaled mean and the estimate
    from the confirming carriers.

    Args:
        values: lifts or contractions in the screening carriers, shape (T, K).
        pilot_rows: row indices of the P pilots, shape (P,).
        confirmed_pilots: estimate of each pilot relative to the ordinary token, from the confirming carriers,
            shape (P,).
        confidence: coverage of the two-sided normal intervals.

    Returns:
        The effects relative to the ordinary token, with intervals.
    """
    means = values.mean(axis=1)
    beyond_median = means - float(np.median(means[pilot_rows]))
    spread = float(beyond_median[pilot_rows].std())
    if spread > 0:
        beyond_median *= float(confirmed_pilots.std()) / spread
    differences = beyond_median[pilot_rows] - confirmed_pilots
    error = float(np.sqrt(np.mean(differences**2)))
    half_width = float(scipy.special.ndtri((1 + confidence) / 2)) * error
    return Estimates(
        value=beyond_median,
        low=beyond_median - half_width,
        high=beyond_median + half_width,
    )


def _kind_lifts(
    measured: Measurements, pilots: Ids, kind_indices: Sequence[int], kind_spreads: Vector
) -> Vector:
    """Return the lift of each token on each kind of text, minus the pilots' median lift on that kind.

    Args:
        measured: the measurements of a round.
        pilots: ids of the pilots.
        kind_indices: indices of the anchor groups that are kinds of text.
        kind_spreads: for each kind of text, the standard deviation of the cosines between carriers and the
            anchors of that kind.

    Returns:
        Lifts in units of ``kind_spreads``, shape (T, kinds). A lift is NaN if no carrier has an unrelated
        anchor of that kind.
    """
    if not kind_indices:
        return np.empty((len(measured.ids), 0))
    lifts = measured.mean_anchor_group_lifts()[:, kind_indices]
    median_pilot = np.median(lifts[measured.rows_of(pilots)], axis=0)
    kind_lifts: Vector = (lifts - median_pilot) / kind_spreads
    return kind_lifts


def _deviations_of(ids: Ids, deviation_by_id: Mapping[int, float] | None) -> Vector:
    """Return the vector deviation of each token, or NaN if the token has none."""
    if deviation_by_id is None:
        return np.full(len(ids), np.nan)
    return np.array([deviation_by_id.get(token_id, np.nan) for token_id in ids.tolist()])


def _blocks(matrix: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield a matrix in blocks of at most `_BLOCK_ROWS` rows."""
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


def write_effects(folder: ResultFolder, screened: Measurements, most_bytes: int = MOST_BYTES) -> None:
    """Write the contraction and pull of every token, as fitted in the screening carriers.

    If the pulls need more than ``most_bytes``, they are projected onto as many orthonormal axes as fit:
    `AXES_FILE` contains the axes, and the column ``pull`` contains the coordinates of each pull on the axes.
    """
    pull = screened.effects.pull
    most_axes = max(1, most_bytes // (np.dtype(np.float16).itemsize * len(pull)))
    if most_axes < pull.shape[1]:
        axes = _main_axes(pull, most_axes)
        folder.write_table(AXES_FILE, pl.DataFrame({"axis": axes}))
        coordinates = [(block.astype(np.float32) @ axes.T).astype(np.float16) for block in _blocks(pull)]
        pull = np.concatenate(coordinates)
    table = pl.DataFrame(
        {
            "token_id": screened.ids,
            "contraction": screened.effects.contraction.astype(np.float32),
            "pull": pull.astype(np.float16),
        }
    )
    folder.write_table(EFFECTS_FILE, table)


def _main_axes(vectors: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Return ``count`` orthonormal axes, shape (count, d), that keep most of the vectors' sum of squares."""
    products = np.zeros((vectors.shape[1], vectors.shape[1]))
    for block in _blocks(vectors):
        block_float32 = block.astype(np.float32)
        products += block_float32.T @ block_float32
    _, axes = np.linalg.eigh(products)
    return np.ascontiguousarray(axes[:, ::-1][:, :count].T, dtype=np.float32)


def read_effects(path: Path) -> TokenEffects:
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
    return TokenEffects(rows["token_id"].to_numpy(), contraction, pull)
