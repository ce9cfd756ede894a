"""From the measurements of the rounds to the numbers of each token that the rule looks at."""

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
from stickytoken.methods.profile.settings import AnchorGroupRecord, ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.verdict import LIFTED_SHARE, Measures
from stickytoken.methods.statistics import (
    Estimates,
    Pull,
    TokenEffects,
    beyond_ordinary,
    present_mean,
)

# Variation below this share of the mean square is rounding.
_ROUNDING = 1e-20
# Rows of a large vocabulary that are computed with at a time.
_ROWS = 8192

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one round; T tokens, K carriers, G groups of anchors."""

    ids: Ids  # ascending, shape (T,)
    lifts: Vector  # on the anchors that the run is about, shape (T, K)
    rising: NDArray[np.float32]  # share of those pairs that rise, shape (T, K)
    groups: NDArray[np.float32]  # lifts by group, NaN where a carrier has no pair with it, shape (T, K, G)
    effects: Pull
    contractions: Vector  # by carrier, shape (T, K)
    seen: NDArray[np.int64] | None = None  # copies that the tokenizer saw, if counted, shape (T, K)

    def rows_of(self, ids: Ids) -> NDArray[np.intp]:
        """Return the rows of tokens that the round measured."""
        return np.searchsorted(self.ids, ids)

    def in_carriers(self, carriers: Sequence[int]) -> Measurements:
        """Keep some of the carriers. The effects stay those of all carriers."""
        carrier_indices = np.array(carriers, dtype=np.intp)
        return replace(
            self,
            lifts=self.lifts[:, carrier_indices],
            rising=self.rising[:, carrier_indices],
            groups=self.groups[:, carrier_indices],
            contractions=self.contractions[:, carrier_indices],
            seen=None if self.seen is None else self.seen[:, carrier_indices],
        )

    def group_means(self) -> Vector:
        """Average the lifts by group over the carriers that have a pair with it, shape (T, G)."""
        return present_mean(self.groups.astype(np.float64).transpose(1, 0, 2))


def measurements(rows: pl.DataFrame, carriers: int) -> Measurements:
    """Read the rows of a stage with this many carriers."""
    ordered = rows.sort("token_id")
    ids = ordered["token_id"].to_numpy().astype(np.int64)
    return Measurements(
        ids=ids,
        lifts=_matrix(ordered, "lifts"),
        rising=_matrix(ordered, "rising"),
        groups=_matrix(ordered, "groups").reshape(len(ids), carriers, -1),
        effects=Pull(ordered["contraction"].to_numpy(writable=True), _matrix(ordered, "pull")),
        contractions=_matrix(ordered, "contractions").astype(np.float64),
        seen=_matrix(ordered, "seen") if "seen" in ordered.columns else None,
    )


def _matrix(ordered: pl.DataFrame, column: str) -> NDArray[Any]:
    # Python numbers would take a gigabyte for a large vocabulary.
    flat = ordered[column].explode().to_numpy(writable=True)
    return flat.reshape(len(ordered), len(flat) // max(1, len(ordered)))


def joined(first: Measurements, second: Measurements) -> Measurements:
    """Put the tokens of two measurements in the same carriers together, in order of id."""
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def join(rows: NDArray[Any], further_rows: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([rows, further_rows])[order])

    return Measurements(
        ids=ids[order],
        lifts=join(first.lifts, second.lifts),
        rising=join(first.rising, second.rising),
        groups=join(first.groups, second.groups),
        effects=Pull(
            join(first.effects.contraction, second.effects.contraction),
            join(first.effects.pull, second.effects.pull),
        ),
        contractions=join(first.contractions, second.contractions),
        seen=None if first.seen is None or second.seen is None else join(first.seen, second.seen),
    )


@dataclass(frozen=True)
class Measured:
    """The measurements of all rounds, and what the rule needs besides."""

    job: Job[ProfileSettings]
    plan: ProfilePlanRecord
    screening_carriers: list[int]  # places in the plan
    screened: Measurements  # all tokens, in the carriers of the screen
    confirmed: Measurements  # the pilots and the selected tokens, in all other carriers
    unconfirmed: int  # tokens that might reach a threshold, for which the budget did not suffice
    vector_deviations: Mapping[int, float] | None  # by token id; None where vectors cannot be compared


class TokenNumbers(NamedTuple):
    """The numbers of all measured tokens, each from the last round that measured it."""

    measures: Measures
    ordinary_lift: float  # lift of the ordinary token, as a difference of cosines
    ordinary_contraction: float
    rising: Vector  # share of unrelated pairs that rise, shape (T,)
    kind_lifts: Vector  # lift by kind of text beyond the ordinary token, in SD of that kind, shape (T, kinds)
    texts: NDArray[np.int64]  # number of texts behind the numbers, shape (T,)

    def measures_of(self, ids: Ids) -> Measures:
        """Return the measures of some of the tokens."""
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
    """Estimate the numbers of every token.

    Tokens of the last round have a Student interval over its carriers. The others have their mean over the
    carriers of the screen; how far that is off is measured on the pilots, which were in all carriers.
    """
    plan = measured.plan
    screened = measured.screened
    confirmed = measured.confirmed
    confidence = measured.job.settings.confidence
    pilots = np.array(plan.pilots, dtype=np.int64)
    nobody_selected = np.isin(confirmed.ids, pilots)
    _require_differences(confirmed, nobody_selected)

    lift = beyond_ordinary(confirmed.lifts, nobody_selected, confidence, plan.call_noise**2)
    erased = beyond_ordinary(confirmed.contractions, nobody_selected, confidence)
    left_by_ordinary = max(1 - erased.ordinary, np.finfo(float).tiny)
    confirmed_rows = screened.rows_of(confirmed.ids)
    pilot_rows = screened.rows_of(pilots)

    def of_all(close: Estimates, by_carrier: Vector, unit: float) -> Estimates:
        """Estimate all tokens from the screen, and put the close estimates in their places."""
        estimates = _screen_estimates(by_carrier, pilot_rows, close.value[nobody_selected], confidence)
        for column, close_column in zip(estimates, close, strict=True):
            column[confirmed_rows] = close_column
        return estimates.divided_by(unit)

    is_confirmed = np.zeros(len(screened.ids), dtype=np.bool_)
    is_confirmed[confirmed_rows] = True
    texts = np.full(len(screened.ids), screened.lifts.shape[1])
    texts[confirmed_rows] = confirmed.lifts.shape[1]
    rising = screened.rising.mean(axis=1).astype(np.float64)
    rising[confirmed_rows] = confirmed.rising.mean(axis=1)

    kind_indices = [index for index, group in enumerate(plan.groups) if group.kind]
    kind_groups = [plan.groups[index] for index in kind_indices]
    kind_lifts = _kind_lifts(screened, pilots, kind_indices, kind_groups)
    kind_lifts[confirmed_rows] = _kind_lifts(confirmed, pilots, kind_indices, kind_groups)
    smallest_on_a_kind = LIFTED_SHARE * measured.job.settings.smallest_lift
    measures = Measures(
        ids=screened.ids,
        lift=of_all(lift.estimates, screened.lifts, plan.similarity_spread),
        erased=of_all(erased.estimates, screened.contractions, left_by_ordinary),
        vector_deviation=_deviations(measured.vector_deviations, screened.ids),
        confirmed=is_confirmed,
        kinds_lifted=(kind_lifts >= smallest_on_a_kind).sum(axis=1),  # NaN counts as not lifted
        kinds=len(kind_indices),
    )
    return TokenNumbers(measures, lift.ordinary, erased.ordinary, rising, kind_lifts, texts)


def _require_differences(confirmed: Measurements, nobody_selected: NDArray[np.bool_]) -> None:
    """Refuse a model in which copies of all tokens do the same: nothing is ordinary there."""
    lifts = confirmed.lifts[nobody_selected]
    if len(lifts) < 2:
        raise InputError(
            f"{len(lifts)} random token is there to compare with, and at least two are needed: the model's "
            "vocabulary has too few entries that can occur in text"
        )
    centred = lifts - lifts.mean(axis=0)
    if float((centred**2).mean()) <= _ROUNDING * float((lifts**2).mean()):
        raise InputError("every token moves the similarities equally: the model does not tell texts apart")


def _screen_estimates(
    by_carrier: Vector, pilot_rows: NDArray[np.intp], close_pilots: Vector, confidence: float
) -> Estimates:
    """Average the values of the screen, and put them on the scale of the carriers that confirm.

    The few carriers of the screen may move texts more, or less, than the others do. The values are scaled so
    that the pilots spread as much as in the other carriers; how far they are then off is the error.
    """
    means = by_carrier.mean(axis=1)
    values = means - float(np.median(means[pilot_rows]))
    spread = float(values[pilot_rows].std())
    if spread > 0:
        values *= float(close_pilots.std()) / spread
    differences = values[pilot_rows] - close_pilots
    error = float(np.sqrt(np.mean(differences**2)))
    half_width = float(scipy.special.ndtri((1 + confidence) / 2)) * error
    return Estimates(values, np.full(len(values), error), values - half_width, values + half_width)


def _kind_lifts(
    measured: Measurements, pilots: Ids, carrier_indices: Sequence[int], groups: Sequence[AnchorGroupRecord]
) -> Vector:
    """Compute lifts by kind of text beyond the median pilot, in SD of that kind; NaN where unmeasured."""
    if not carrier_indices:
        return np.empty((len(measured.ids), 0))
    means = measured.group_means()[:, carrier_indices]
    ordinary = np.median(means[measured.rows_of(pilots)], axis=0)
    spreads = np.array([group.spread for group in groups])
    lifts: Vector = (means - ordinary) / spreads
    return lifts


def _deviations(by_id: Mapping[int, float] | None, ids: Ids) -> Vector:
    if by_id is None:
        return np.full(len(ids), np.nan)
    return np.array([by_id.get(token_id, np.nan) for token_id in ids.tolist()])


def _blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, max(1, len(values)), _ROWS):
        yield values[start : start + _ROWS]


EFFECTS_FILE = "effects.parquet"
AXES_FILE = "effects_axes.parquet"
EFFECTS_COLUMNS = ("token_id", "contraction", "pull")
# 150,000 tokens keep 1,789 of 4,096 axes, 44%. With that share, lifts on four other corpora agree with
# those of whole pulls at a Spearman correlation of at least 0.998 (all-mpnet-base-v2, 768 dimensions) and
# 0.962 (all-MiniLM-L6-v2, 384).
MOST_BYTES = 512 * 2**20


def write_effects(folder: ResultFolder, screened: Measurements, most_bytes: int = MOST_BYTES) -> None:
    """Write pull and contraction of every token, measured in the carriers of the screen.

    Pulls of a large model are coordinates on as many orthonormal axes as fit into ``most_bytes``.
    """
    pull = screened.effects.pull
    most_axes = max(1, most_bytes // (np.dtype(np.float16).itemsize * len(pull)))
    if most_axes < pull.shape[1]:
        axes = _main_axes(pull, most_axes)
        folder.write_table(AXES_FILE, pl.DataFrame({"axis": axes}))
        blocks = [(block.astype(np.float32) @ axes.T).astype(np.float16) for block in _blocks(pull)]
        pull = np.concatenate(blocks)
    table = pl.DataFrame(
        {
            "token_id": screened.ids,
            "contraction": screened.effects.contraction.astype(np.float32),
            "pull": pull.astype(np.float16),
        }
    )
    folder.write_table(EFFECTS_FILE, table)


def _main_axes(vectors: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Return the orthonormal axes that keep most of the sum of squares, shape (count, d)."""
    products = np.zeros((vectors.shape[1], vectors.shape[1]))
    for block in _blocks(vectors):
        exact = block.astype(np.float32)
        products += exact.T @ exact
    _, axes = np.linalg.eigh(products)
    return np.ascontiguousarray(axes[:, ::-1][:, :count].T, dtype=np.float32)


def read_effects(path: Path) -> TokenEffects:
    """Read pull and contraction of every token of a run."""
    folder = ResultFolder(path)
    table = folder.read_table(EFFECTS_FILE, EFFECTS_COLUMNS)
    if "round" in table.columns:  # runs of the older rule kept later rounds, too
        table = table.filter(pl.col("round") == "screen")
    rows = table.sort("token_id")
    pull: NDArray[np.float32] = rows["pull"].to_numpy().astype(np.float32)
    if (path / AXES_FILE).is_file():
        pull = pull @ folder.read_table(AXES_FILE, ("axis",))["axis"].to_numpy()
    contraction = rows["contraction"].to_numpy().astype(np.float64)
    return TokenEffects(rows["token_id"].to_numpy(), contraction, pull)
