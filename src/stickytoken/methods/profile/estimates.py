"""Estimate every token from the measurements of the rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.methods._null import Null, Shape
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.statistics import (
    Estimates,
    Regression,
    centre_probes,
    interaction_variance,
    mean_with_interval,
    present_mean,
    scale_between,
)

# Noise below this share of the mean square is rounding.
_ROUNDING = 1e-20

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one round; T tokens, K probes, G groups of anchors.

    Attributes:
        ids: token ids, ascending, shape (T,).
        lifts: lifts on all anchors, shape (T, K).
        sentence_lifts: lifts on the sentences alone, shape (T, K).
        groups: lifts by group of anchors, averaged over probes, shape (T, G).
        rising: share of pairs that rise, shape (T,).
        slopes: slopes of the similarity after on the similarity before, NaN if undefined, shape (T, K).
        intercept: intercepts of the same lines, averaged over probes, shape (T,).
        alone: similarity of the token alone to the anchors' mean, first round only, shape (T,).
    """

    ids: Ids
    lifts: Vector
    sentence_lifts: Vector
    groups: Vector
    rising: Vector
    slopes: Vector
    intercept: Vector
    alone: Vector | None = None

    @property
    def slope(self) -> Vector:
        """Mean over the probes that have a slope, shape (T,)."""
        return present_mean(self.slopes.T)

    def rows(self, ids: Ids) -> NDArray[np.intp]:
        """Find the rows of token ids, all of which must be here."""
        return np.searchsorted(self.ids, ids)


class Screened(NamedTuple):
    """Estimates of every token from the first round.

    Attributes:
        centred: lifts minus the probes' common effects, shape (T, K).
        plain: means over probes, each with the pooled error; no shrinkage.
        shrunk: posterior means, for the tokens that go no further.
        prior: the prior behind them.
        null: distribution of ordinary tokens.
        reliability: share of the variance of unselected tokens' means that is not noise.
    """

    centred: Vector
    plain: Estimates
    shrunk: Estimates
    prior: Regression
    null: Null
    reliability: float


def screen(
    lifts: Vector,
    covariates: Vector,
    reference: NDArray[np.bool_],
    confidence: float,
    of_part: Shape | None = None,
) -> Screened:
    """Estimate every token from the first round.

    Args:
        lifts: shape (T, K).
        covariates: covariates of the prior, shape (T, covariates).
        reference: unselected tokens, shape (T,).
        confidence: coverage of the intervals.
        of_part: see `Null.fit`.

    Raises:
        InputError: copies change nothing, or change it alike for all tokens.
    """
    centred = centre_probes(lifts, reference)
    noise = interaction_variance(centred[reference]) / lifts.shape[1]
    if noise <= _ROUNDING * float((lifts**2).mean()):
        raise InputError(
            "every token moves the similarities alike: the model does not tell texts apart, "
            "or there is only one token to look at"
        )
    values = centred.mean(axis=1)
    variances = np.full(len(values), noise)
    prior = Regression.fit(values[reference], noise, covariates[reference])
    return Screened(
        centred,
        Estimates(values, np.sqrt(variances), values, values),
        prior.shrink(values, variances, covariates, confidence),
        prior,
        Null.fit(values[reference], noise, of_part),
        max(0.0, 1 - noise / spread) if (spread := float(values[reference].var(ddof=1))) > 0 else 0.0,
    )


class Refined(NamedTuple):
    """Estimates of the second round's tokens from both rounds, on the scale of the second.

    Attributes:
        plain: means over the probes of both rounds.
        shrunk: posterior means.
        scale: ratio of the second round's effects to the first's.
    """

    plain: Estimates
    shrunk: Estimates
    scale: float


def refine(
    screened: Screened,
    covariates: Vector,
    rows: NDArray[np.intp],
    lifts: Vector,
    reference: NDArray[np.bool_],
    confidence: float,
) -> Refined:
    """Combine both rounds for the tokens that went on to the second.

    Args:
        screened: estimates from the first round.
        covariates: covariates of the prior, for all tokens of the first round.
        rows: rows of the second round's tokens in the first.
        lifts: lifts of the second round, shape (T, K).
        reference: unselected tokens of the second round, shape (T,).
        confidence: coverage of the intervals.
    """
    scale = _scale(screened, rows, lifts, reference)
    plain = screened.plain.scaled(scale)
    fresh = centre_probes(lifts, reference, scale * screened.shrunk.value[rows])
    before, added = screened.centred.shape[1], fresh.shape[1]
    values = (before * plain.value[rows] + fresh.sum(axis=1)) / (before + added)
    noise = interaction_variance(fresh[reference])
    variances = (before**2 * plain.error[rows] ** 2 + added * noise) / (before + added) ** 2
    prior = screened.prior.scaled(scale)
    return Refined(
        Estimates(values, np.sqrt(variances), values, values),
        prior.shrink(values, variances, covariates[rows], confidence),
        scale,
    )


def _scale(screened: Screened, rows: NDArray[np.intp], lifts: Vector, reference: NDArray[np.bool_]) -> float:
    """Estimate how a later round's effects scale with the first's: its carriers may move more, or less."""
    own = rows[reference]
    return scale_between(screened.plain.value[own], screened.reliability, lifts[reference].mean(axis=1))


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


def estimate(
    rounds: Mapping[Round, Measurements],
    parts: Mapping[Round, Vector],
    reference: Ids,
    late_reference: Ids,
    confidence: float,
    of_part: Shape | None = None,
) -> TokenEstimates:
    """Estimate every token from the latest round that it reached.

    Estimates are on the scale of the last round. A token that was confirmed is estimated from
    the confirming round alone, whose texts had no part in its selection. The others get the
    posterior of all their measurements.

    Args:
        rounds: measurements.
        parts: the lifts of each round to estimate, shape (T, K).
        reference: unselected tokens of the first round.
        late_reference: those of them that are in every round.
        confidence: coverage of the intervals.
        of_part: see `Null.fit`.

    Raises:
        InputError: the first round did not encode the tokens alone.
    """
    first = rounds[Round.SCREEN]
    if first.alone is None:
        raise InputError("the first round did not encode the tokens alone")
    covariates, unselected = first.alone[:, None], np.isin(first.ids, reference)
    screened = screen(parts[Round.SCREEN], covariates, unselected, confidence, of_part)
    texts = np.full(len(first.ids), parts[Round.SCREEN].shape[1] + 1)
    level, scale = float(parts[Round.SCREEN][unselected].mean()), 1.0
    refined: Refined | None = None
    rows_refined = rows_confirmed = np.empty(0, dtype=np.intp)
    confirmed: Estimates | None = None
    if Round.REFINE in rounds:
        second, part = rounds[Round.REFINE], parts[Round.REFINE]
        rows_refined, own = first.rows(second.ids), np.isin(second.ids, late_reference)
        refined = refine(screened, covariates, rows_refined, part, own, confidence)
        texts[rows_refined] += part.shape[1]
        scale = refined.scale
        level = _level(part[own], scale * screened.shrunk.value[rows_refined[own]])
    if Round.CONFIRM in rounds:
        third, part = rounds[Round.CONFIRM], parts[Round.CONFIRM]
        rows_confirmed, own = first.rows(third.ids), np.isin(third.ids, late_reference)
        scale = _scale(screened, rows_confirmed, part, own)
        expected = scale * screened.shrunk.value[rows_confirmed]
        centred = centre_probes(part, own, expected)
        # The probes' common effects are known from few tokens: an error that all estimates share.
        common = float((centred.mean(axis=1) - expected)[own].var(ddof=1)) / int(own.sum())
        confirmed = mean_with_interval(centred, confidence, common)
        texts[rows_confirmed] = part.shape[1]
        level = _level(part[own], expected[own])
    lift, tested = screened.shrunk.scaled(scale), screened.plain.scaled(scale)
    if refined is not None:
        _put(lift, refined.shrunk.scaled(scale / refined.scale), rows_refined)
        _put(tested, refined.plain.scaled(scale / refined.scale), rows_refined)
    if confirmed is not None:
        _put(lift, confirmed, rows_confirmed)
        _put(tested, confirmed, rows_confirmed)
    return TokenEstimates(first.ids, texts, lift, tested, screened.null.scaled(scale), level)


def _level(lifts: Vector, effects: Vector) -> float:
    """Compute the lift of the mean token from unselected tokens and their effects."""
    return float((lifts - effects[:, None]).mean())


def _put(into: Estimates, found: Estimates, rows: NDArray[np.intp]) -> None:
    for target, source in zip(into, found, strict=True):
        target[rows] = source
