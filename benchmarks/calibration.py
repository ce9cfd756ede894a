"""Does the rule flag only what reaches its thresholds? Simulated vocabularies with known truth; minutes.

Effects and noise have the sizes that were measured on all-MiniLM-L6-v2. Each vocabulary goes through the
rounds of a run: pilot, screen, selection, confirmation, verdict. Truth is the effect over all texts.
--quick: fewer, smaller vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bench import Results, commands
from stickytoken.methods.base import Job
from stickytoken.methods.profile.estimates import Measured, Measurements, estimate, joined
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import (
    PILOT_TOKENS,
    carriers_needed,
    confirm_in_batches,
    tokens_to_confirm,
)
from stickytoken.methods.profile.texts import representative_carriers
from stickytoken.methods.profile.verdict import apply_rule
from stickytoken.methods.statistics import Effects, share_erased
from stickytoken.settings.profile import ProfileSettings

Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Vector]
SETTINGS = ProfileSettings()

# Sizes on all-MiniLM-L6-v2. Lifts are in standard deviations of the similarities, contractions are shares.
ORDINARY_LIFT = 0.09  # standard deviation over ordinary tokens
LIFT_NOISE = 0.085  # of one carrier around its token's effect
ORDINARY_CONTRACTION = 0.34  # of the ordinary token
CONTRACTION_SPREAD = 0.06
CONTRACTION_NOISE = 0.06
# Carriers move all tokens by a common amount, and some move tokens more than others do.
COMMON = 0.08
GAIN_SPREAD = 0.15


class Shape(NamedTuple):
    """The distribution of ordinary effects, the share of sticky tokens, and their effects."""

    ordinary: Draw  # standardised
    sticky_share: float
    lifts: tuple[float, float]  # of sticky tokens, in SD: lowest and highest
    erased: tuple[float, float]  # of sticky tokens
    noise: Draw  # standardised


def normal(generator: np.random.Generator, size: int) -> Vector:
    return generator.normal(size=size)


def left_skewed(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray((8 - generator.gamma(8, size=size)) / np.sqrt(8))


def right_skewed(generator: np.random.Generator, size: int) -> Vector:
    return -left_skewed(generator, size)


def student(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray(generator.standard_t(5, size=size) / np.sqrt(5 / 3))


def laplace(generator: np.random.Generator, size: int) -> Vector:
    return generator.laplace(scale=np.sqrt(0.5), size=size)


def two_kinds(generator: np.random.Generator, size: int) -> Vector:
    """Nine of ten tokens close together, one of ten spread widely, as single characters are."""
    is_wide = generator.random(size) < 0.1
    return np.where(is_wide, 2.2, 0.75) * generator.normal(size=size)


STRONG_LIFTS, STRONG_ERASED = (0.6, 1.3), (0.5, 0.9)
NEAR_LIFTS, NEAR_ERASED = (0.3, 0.7), (0.25, 0.55)
SHAPES = {
    "normal, no sticky tokens": Shape(normal, 0.0, STRONG_LIFTS, STRONG_ERASED, normal),
    "normal, few sticky tokens": Shape(normal, 0.001, STRONG_LIFTS, STRONG_ERASED, normal),
    "normal, many sticky tokens": Shape(normal, 0.01, STRONG_LIFTS, STRONG_ERASED, normal),
    "normal, effects around the thresholds": Shape(normal, 0.005, NEAR_LIFTS, NEAR_ERASED, normal),
    "normal, heavy-tailed noise": Shape(normal, 0.002, STRONG_LIFTS, STRONG_ERASED, student),
    "skewed to the left": Shape(left_skewed, 0.002, STRONG_LIFTS, STRONG_ERASED, normal),
    "skewed to the right": Shape(right_skewed, 0.002, STRONG_LIFTS, STRONG_ERASED, normal),
    "Student t, 5 degrees of freedom": Shape(student, 0.002, STRONG_LIFTS, STRONG_ERASED, normal),
    "Laplace": Shape(laplace, 0.002, STRONG_LIFTS, STRONG_ERASED, normal),
    "Laplace, effects around the thresholds": Shape(laplace, 0.005, NEAR_LIFTS, NEAR_ERASED, student),
    "two kinds of entries": Shape(two_kinds, 0.002, STRONG_LIFTS, STRONG_ERASED, normal),
}


@dataclass(frozen=True)
class Simulated:
    """One vocabulary: what is true of its tokens, and what the rule says."""

    lift: Vector  # true effects beyond the ordinary token, in SD
    erased: Vector
    flagged: NDArray[np.bool_]
    confirmed: NDArray[np.bool_]
    covered: NDArray[np.bool_]  # whether the intervals of both measures hold the truth

    @property
    def reach(self) -> Vector:
        """By how many thresholds the stronger of the two true effects reaches."""
        return np.maximum(self.lift / SETTINGS.smallest_lift, self.erased / SETTINGS.smallest_erased)


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary, run the rounds on it, and judge."""
    generator = np.random.default_rng(seed)
    lifts, contractions = true_effects(generator, shape, size)
    carriers = carriers_needed(SETTINGS)

    def in_carriers(effects: Vector, noise: float) -> Vector:
        """Effects as each carrier shows them, shape (T, K)."""
        gain = 1 + GAIN_SPREAD * generator.normal(size=carriers)
        gain /= gain.mean()
        own_noise = shape.noise(generator, size * carriers).reshape(size, carriers)
        centred = effects - np.median(effects)
        return np.asarray(np.median(effects) + centred[:, None] * gain + noise * own_noise)

    lift_values = in_carriers(lifts, LIFT_NOISE) + COMMON * generator.normal(size=carriers)
    contraction_values = in_carriers(contractions, CONTRACTION_NOISE)
    whole = measurements_of(np.arange(size), lift_values, contraction_values)
    pilots = np.sort(generator.permutation(size)[:PILOT_TOKENS])

    by_carrier = np.stack([lift_values[pilots], contraction_values[pilots]], axis=2)
    lengths = np.ones(carriers, dtype=np.int64)  # all carriers are equally long
    few = representative_carriers(by_carrier, lengths, np.arange(carriers), SETTINGS.screening_texts)
    others = [place for place in range(carriers) if place not in few]
    screened, of_pilots = whole.in_carriers(few), rows_of(whole, pilots).in_carriers(others)

    def confirm(so_far: Measured, ids: NDArray[np.int64], batch: int) -> Measured:
        rows = rows_of(whole, ids).in_carriers(others)
        return replace(so_far, confirmed=joined(so_far.confirmed, rows))

    unconfirmed_ids = np.setdiff1d(np.arange(size), pilots)
    after_screen = measured(few, screened, of_pilots, pilots)
    after_all = confirm_in_batches(after_screen, unconfirmed_ids, tokens_to_confirm(SETTINGS, size), confirm)
    measures = estimate(after_all).measures
    verdicts = np.array(apply_rule(measures, SETTINGS).verdicts)
    true_lift = lifts - np.median(lifts)
    true_erased = np.asarray(share_erased(contractions, float(np.median(contractions))))
    covered = (measures.lift.low <= true_lift) & (true_lift <= measures.lift.high)
    covered &= (measures.erased.low <= true_erased) & (true_erased <= measures.erased.high)
    return Simulated(true_lift, true_erased, verdicts != "benign", measures.confirmed, covered)


def true_effects(generator: np.random.Generator, shape: Shape, size: int) -> tuple[Vector, Vector]:
    """Draw lifts and contractions; half of the sticky tokens lift, the other half erase."""
    lifts = ORDINARY_LIFT * shape.ordinary(generator, size)
    contractions = ORDINARY_CONTRACTION + CONTRACTION_SPREAD * shape.ordinary(generator, size)
    is_sticky = generator.random(size) < shape.sticky_share
    lifting = is_sticky & (generator.random(size) < 0.5)
    erasing = is_sticky & ~lifting
    lifts[lifting] = generator.uniform(*shape.lifts, int(lifting.sum()))
    shares = generator.uniform(*shape.erased, int(erasing.sum()))
    contractions[erasing] = ORDINARY_CONTRACTION + shares * (1 - ORDINARY_CONTRACTION)
    return lifts, contractions


def measurements_of(ids: NDArray[np.int64], lifts: Vector, contractions: Vector) -> Measurements:
    """Make the measurements of a round without kinds of text and without pulls."""
    tokens, carriers = lifts.shape
    return Measurements(
        ids=ids,
        lifts=lifts,
        anchor_group_lifts=np.zeros((tokens, carriers, 0), dtype=np.float32),
        effects=Effects(contractions.mean(axis=1), np.zeros((tokens, 1))),
        contractions=contractions,
    )


def rows_of(whole: Measurements, ids: NDArray[np.int64]) -> Measurements:
    return measurements_of(ids, whole.lifts[ids], whole.contractions[ids])


def measured(
    few: list[int], screened: Measurements, confirmed: Measurements, pilots: NDArray[np.int64]
) -> Measured:
    """Put measurements beside a plan that has only pilots; similarities spread by 1, so lifts are in SD."""
    plan = ProfilePlanRecord(
        mean_similarity=0.0,
        mean_similarity_entries=1,
        similarity_spread=1.0,
        share_below=1.0,
        left_out=0,
        groups=[],
        anchors=[],
        carriers=[],
        pilots=pilots.tolist(),
    )
    job = cast(Job[ProfileSettings], SimpleNamespace(settings=SETTINGS))
    return Measured(job, plan, few, screened, confirmed, 0, None)


def summary(results: Results, name: str, vocabularies: list[Simulated]) -> None:
    """Check false flags, recall and coverage over repeated vocabularies."""
    reach = np.concatenate([vocabulary.reach for vocabulary in vocabularies])
    flagged = np.concatenate([vocabulary.flagged for vocabulary in vocabularies])
    negligible = int((flagged & (reach < 0.5)).sum())
    results.check(
        f"{name}: flagged, true effect below half a threshold", "0", str(negligible), not negligible
    )
    below = int((flagged & (reach < 1)).sum())
    share = below / max(1, int(flagged.sum()))
    ours = f"{share:.1%} ({below} of {int(flagged.sum())})"
    results.check(f"{name}: flagged, true effect below the threshold", "at most 10 %", ours, share <= 0.1)
    clear = reach >= 1.15
    if clear.any():
        recall = float(flagged[clear].mean())
        ours = f"{recall:.1%} of {int(clear.sum())}"
        results.check(f"{name}: found, true effect 15 % above the threshold", "beside it", ours)
    confirmed = np.concatenate([vocabulary.confirmed for vocabulary in vocabularies])
    covered = np.concatenate([vocabulary.covered for vocabulary in vocabularies])
    ours = f"{covered[confirmed].mean():.1%}"
    results.check(f"{name}: intervals of both measures hold the truth, confirmed tokens", "beside it", ours)


def main(quick: bool = False) -> None:
    size, repeats = (4_000, 6) if quick else (20_000, 20)
    results = Results("calibration", tokens=size, vocabularies=repeats)
    for title, shape in SHAPES.items():
        summary(results, title, [simulate(shape, size, seed) for seed in range(repeats)])
    results.finish()


if __name__ == "__main__":
    commands(__doc__, main)
