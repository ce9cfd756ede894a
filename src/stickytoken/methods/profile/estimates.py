"""Estimate every token from the measurements of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.methods._null import Null
from stickytoken.methods.panel import Vector
from stickytoken.methods.profile.rounds import Round, view_columns
from stickytoken.methods.pull import Pull
from stickytoken.methods.statistics import (
    Estimates,
    centre_probes,
    interaction_variance,
    mean_with_interval,
    present_mean,
    scale_between,
    shrunk,
)

# Noise below this share of the mean square is rounding.
_ROUNDING = 1e-20

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one round; T tokens, K carriers, G groups of anchors.

    Attributes:
        ids: token ids, ascending, shape (T,).
        lifts: lifts on the anchors that the run is about, shape (T, K).
        rising: share of those pairs that rise, shape (T, K).
        groups: lifts by group of anchors, NaN where a carrier has no pair with a group, shape (T, K, G).
        effects: contraction and pull.
        seen: copies that the tokenizer saw, shape (T, K); None if they were not counted.
    """

    ids: Ids
    lifts: Vector
    rising: NDArray[np.float32]
    groups: NDArray[np.float32]
    effects: Pull
    seen: NDArray[np.int64] | None = None

    def rows(self, ids: Ids) -> NDArray[np.intp]:
        """Find the rows of token ids, all of which must be here."""
        return np.searchsorted(self.ids, ids)

    def chosen(self, rows: NDArray[np.intp], carriers: list[int]) -> Measurements:
        """Keep some tokens and some carriers; the effects stay those of all carriers."""
        both = np.ix_(rows, np.array(carriers, dtype=np.intp))
        return Measurements(
            self.ids[rows],
            self.lifts[both],
            self.rising[both],
            self.groups[both],
            Pull(self.effects.contraction[rows], self.effects.pull[rows]),
            None if self.seen is None else self.seen[both],
        )

    def on_group(self, group: int) -> Vector:
        """Lifts on one group, without the carriers that have no pair with it, shape (T, K')."""
        lifts = self.groups[:, :, group].astype(np.float64)
        return lifts[:, np.isfinite(lifts).all(axis=0)]

    def group_means(self) -> Vector:
        """Lifts by group, averaged over the carriers that have one, shape (T, G)."""
        return present_mean(self.groups.astype(np.float64).transpose(1, 0, 2))


def measurements(rows: pl.DataFrame, carriers: int) -> Measurements:
    """Turn the rows of one round into arrays.

    Args:
        rows: of the round's shards.
        carriers: number of carriers of the round.
    """
    ordered = rows.sort("token_id")
    return Measurements(
        ids=ordered["token_id"].to_numpy().astype(np.int64),
        lifts=_matrix(ordered, "lifts"),
        rising=_matrix(ordered, "rising"),
        groups=_matrix(ordered, "groups").reshape(len(ordered), carriers, -1),
        effects=Pull(ordered["contraction"].to_numpy(writable=True), _matrix(ordered, "pull")),
        seen=_matrix(ordered, "seen") if "seen" in ordered.columns else None,
    )


def view_measurements(rows: pl.DataFrame, carriers: int, view: View) -> Measurements:
    """Turn the columns of a further view in the rows of one round into arrays; see `measurements`."""
    ordered = rows.sort("token_id")
    numbers, pull = (_matrix(ordered, column) for column in view_columns(view))
    return Measurements(
        ids=ordered["token_id"].to_numpy().astype(np.int64),
        lifts=numbers[:, :carriers],
        rising=numbers[:, carriers : 2 * carriers].astype(np.float32),
        groups=numbers[:, 2 * carriers : -1].reshape(len(ordered), carriers, -1).astype(np.float32),
        effects=Pull(numbers[:, -1].copy(), pull),
        seen=_matrix(ordered, "seen") if "seen" in ordered.columns else None,
    )


def _matrix(ordered: pl.DataFrame, column: str) -> NDArray[Any]:
    # Python numbers would take a gigabyte for a large vocabulary.
    flat = ordered[column].explode().to_numpy(writable=True)
    return flat.reshape(len(ordered), len(flat) // max(1, len(ordered)))


def together(first: Measurements, second: Measurements) -> Measurements:
    """Combine two rounds with the same carriers into one; no token is in both."""
    ids = np.concatenate([first.ids, second.ids])
    order = np.argsort(ids)

    def joined(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.concatenate([a, b])[order])

    return Measurements(
        ids[order],
        joined(first.lifts, second.lifts),
        joined(first.rising, second.rising),
        joined(first.groups, second.groups),
        Pull(*(joined(a, b) for a, b in zip(first.effects, second.effects, strict=True))),
        None if first.seen is None or second.seen is None else joined(first.seen, second.seen),
    )


class Screened(NamedTuple):
    """Estimates of every token from the first round.

    Attributes:
        plain: means over carriers without their common effects, each with the pooled error; no shrinkage.
        shrunk: posterior means, for the tokens that go no further.
        null: distribution of ordinary tokens.
        reliability: share of the variance of unselected tokens' means that is not noise.
    """

    plain: Estimates
    shrunk: Estimates
    null: Null
    reliability: float


def screen(
    lifts: Vector, reference: NDArray[np.bool_], confidence: float, call_noise: float = 0.0
) -> Screened:
    """Estimate every token from the first round.

    Args:
        lifts: shape (T, K).
        reference: unselected tokens, shape (T,).
        confidence: coverage of the intervals.
        call_noise: standard deviation of a cosine from one call of the model to the next.

    Raises:
        InputError: copies change nothing, or change it alike for all tokens.
    """
    centred = centre_probes(lifts, reference)
    noise = max(interaction_variance(centred[reference]), call_noise**2) / lifts.shape[1]
    if noise <= _ROUNDING * float((lifts**2).mean()):
        raise InputError(
            "every token moves the similarities equally: the model does not tell texts apart, "
            "or there is only one token to measure"
        )
    values = centred.mean(axis=1)
    spread = float(values[reference].var(ddof=1))
    effects = max(0.0, spread - noise)
    return Screened(
        Estimates(values, np.full(len(values), np.sqrt(noise)), values, values),
        shrunk(values, noise, effects, confidence),
        Null.fit(values[reference], noise),
        effects / spread if spread > 0 else 0.0,
    )


class TokenEstimates(NamedTuple):
    """Final estimates of every token; effects are relative to the typical token.

    Attributes:
        ids: token ids, ascending.
        texts: number of texts behind each estimate.
        lift: estimates and intervals.
        tested: estimates without shrinkage, from which p-values are computed.
        null: distribution of ordinary tokens.
        level: lift of the mean token; added to an effect it gives the lift itself.
    """

    ids: Ids
    texts: NDArray[np.int64]
    lift: Estimates
    tested: Estimates
    null: Null
    level: float


class Lifts(NamedTuple):
    """Lifts of one round.

    Attributes:
        ids: token ids, ascending.
        values: shape (T, K).
    """

    ids: Ids
    values: Vector


def estimate(
    first: Lifts,
    last: Lifts | None,
    reference: Ids,
    late_reference: Ids,
    confidence: float,
    call_noise: float = 0.0,
) -> TokenEstimates:
    """Estimate every token from the last round that it reached.

    Estimates are on the scale of the last round: its carriers may move more than those of the first, or
    less. A token of the last round is estimated from that round alone, whose texts had no part in its
    selection. The others get the posterior of the first.

    Args:
        first: lifts of all tokens in the first round.
        last: lifts of some of them in the last; None if there is one round.
        reference: unselected tokens of the first round.
        late_reference: those of them that are in the last.
        confidence: coverage of the intervals.
        call_noise: standard deviation of a cosine from one call of the model to the next: no error is
            smaller.

    Raises:
        InputError: copies change nothing, or change it alike for all tokens.
    """
    unselected = np.isin(first.ids, reference)
    screened = screen(first.values, unselected, confidence, call_noise)
    texts = np.full(len(first.ids), first.values.shape[1])
    if last is None:
        level = float(first.values[unselected].mean())
        return TokenEstimates(first.ids, texts, screened.shrunk, screened.plain, screened.null, level)
    rows, own = np.searchsorted(first.ids, last.ids), np.isin(last.ids, late_reference)
    scale = scale_between(
        screened.plain.value[rows[own]], screened.reliability, last.values[own].mean(axis=1)
    )
    expected = scale * screened.shrunk.value[rows]
    centred = centre_probes(last.values, own, expected)
    # The carriers' common effects are known from few tokens: an error that all estimates share.
    common = float((centred.mean(axis=1) - expected)[own].var(ddof=1)) / int(own.sum())
    confirmed = mean_with_interval(centred, confidence, common, call_noise**2)
    texts[rows] = last.values.shape[1]
    lift, tested = screened.shrunk.scaled(scale), screened.plain.scaled(scale)
    for into in (lift, tested):
        for target, source in zip(into, confirmed, strict=True):
            target[rows] = source
    level = float((last.values[own] - expected[own, None]).mean())
    return TokenEstimates(first.ids, texts, lift, tested, screened.null.scaled(scale), level)


def lifts_of(rounds: Mapping[Round, Measurements], group: int | None = None) -> tuple[Lifts, Lifts | None]:
    """Return the lifts of the first round and, if there is one, the last.

    Args:
        rounds: measurements.
        group: a group of anchors; None is the anchors that the run is about.
    """
    found = [
        None
        if (measured := rounds.get(step)) is None
        else Lifts(measured.ids, measured.lifts if group is None else measured.on_group(group))
        for step in (Round.SCREEN, Round.CONFIRM)
    ]
    first, last = found
    if first is None:
        raise InputError("there is no first round to estimate from")
    return first, last
