"""How often does the rule flag tokens that truly erase little, and miss tokens that erase much?

Vocabularies with known true effects are simulated, so no model is needed. Effects and noise have the sizes
that were measured on all-MiniLM-L6-v2. The package's own code chooses carriers, selects tokens, estimates
effects and judges, as in a run: pilots, screen, confirming batches, verdicts. The true effect of a token is
its effect over all texts. Takes minutes; with --quick, there are fewer and smaller vocabularies.

    python benchmarks/calibration.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bench import Results, commands
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.profile.estimates import MeasuredJob, RoundResults, estimate
from stickytoken.methods.profile.plan import PILOT_TOKENS, tokens_to_confirm
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import confirm_in_batches
from stickytoken.methods.profile.texts import representative_carriers
from stickytoken.methods.profile.verdict import RuleInputs, apply_rule
from stickytoken.methods.statistics import Effects
from stickytoken.settings.profile import ProfileSettings

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int], Floats]
SETTINGS = ProfileSettings()

# Sizes that were measured on all-MiniLM-L6-v2. Contractions are shares of a text.
ORDINARY_CONTRACTION = 0.34  # contraction of the ordinary token
CONTRACTION_SPREAD = 0.06  # standard deviation over ordinary tokens
CONTRACTION_NOISE = 0.06  # standard deviation of a token's contraction over carriers
GAIN_SPREAD = 0.15  # standard deviation of the factor by which a carrier multiplies effects


class Shape(NamedTuple):
    """The distributions from which a vocabulary is drawn.

    Attributes:
        ordinary: draws the effects of ordinary tokens, with mean 0 and standard deviation 1.
        sticky_share: share of the tokens that are sticky.
        erased: lowest and highest erased share of sticky tokens.
        noise: draws the noise of carriers, with mean 0 and standard deviation 1.
    """

    ordinary: Draw
    sticky_share: float
    erased: tuple[float, float]
    noise: Draw


def normal(generator: np.random.Generator, size: int) -> Floats:
    """Draw from the standard normal distribution."""
    return generator.normal(size=size)


def left_skewed(generator: np.random.Generator, size: int) -> Floats:
    """Draw from a mirrored gamma distribution of shape 8, standardized."""
    return np.asarray((8 - generator.gamma(8, size=size)) / np.sqrt(8))


def right_skewed(generator: np.random.Generator, size: int) -> Floats:
    """Draw from a gamma distribution of shape 8, standardized."""
    return -left_skewed(generator, size)


def student(generator: np.random.Generator, size: int) -> Floats:
    """Draw from Student's t distribution with 5 degrees of freedom, standardized."""
    return np.asarray(generator.standard_t(5, size=size) / np.sqrt(5 / 3))


def laplace(generator: np.random.Generator, size: int) -> Floats:
    """Draw from the Laplace distribution, standardized."""
    return generator.laplace(scale=np.sqrt(0.5), size=size)


def two_kinds(generator: np.random.Generator, size: int) -> Floats:
    """Draw nine of ten values from a narrow and one of ten from a wide normal distribution.

    Vocabularies look like this if single characters vary more than other tokens do.
    """
    is_wide = generator.random(size) < 0.1
    return np.where(is_wide, 2.2, 0.75) * generator.normal(size=size)


# Effects well above the thresholds.
STRONG_ERASED = (0.5, 0.9)
# Effects on both sides of the thresholds.
NEAR_ERASED = (0.25, 0.55)
SHAPES = {
    "normal, no sticky tokens": Shape(normal, 0.0, STRONG_ERASED, normal),
    "normal, few sticky tokens": Shape(normal, 0.001, STRONG_ERASED, normal),
    "normal, many sticky tokens": Shape(normal, 0.01, STRONG_ERASED, normal),
    "normal, effects around the thresholds": Shape(normal, 0.005, NEAR_ERASED, normal),
    "normal, heavy-tailed noise": Shape(normal, 0.002, STRONG_ERASED, student),
    "skewed to the left": Shape(left_skewed, 0.002, STRONG_ERASED, normal),
    "skewed to the right": Shape(right_skewed, 0.002, STRONG_ERASED, normal),
    "Student t, 5 degrees of freedom": Shape(student, 0.002, STRONG_ERASED, normal),
    "Laplace": Shape(laplace, 0.002, STRONG_ERASED, normal),
    "Laplace, effects around the thresholds": Shape(laplace, 0.005, NEAR_ERASED, student),
    "two kinds of entries": Shape(two_kinds, 0.002, STRONG_ERASED, normal),
}


@dataclass(frozen=True)
class Simulated:
    """A simulated vocabulary of T tokens: their true erased shares, and what the rule says.

    Attributes:
        erased: true erased shares, shape (T,).
        flagged: whether the rule flags the token, shape (T,).
        confirmed: whether the token was measured in the confirming carriers, shape (T,).
        covered: whether the interval contains the true share, shape (T,).
    """

    erased: Floats
    flagged: NDArray[np.bool_]
    confirmed: NDArray[np.bool_]
    covered: NDArray[np.bool_]

    @property
    def reach(self) -> Floats:
        """The true erased share divided by its threshold, shape (T,)."""
        return self.erased / SETTINGS.smallest_erased


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary of ``size`` tokens, measure it in the rounds of a run, and judge it."""
    generator = np.random.default_rng(seed)
    contractions = true_contractions(generator, shape, size)
    in_all_carriers = effects_in_carriers(generator, shape, contractions)
    pilots = np.sort(generator.permutation(size)[:PILOT_TOKENS])
    measures = measured_in_rounds(in_all_carriers, pilots)
    verdicts = np.array(apply_rule(measures, SETTINGS).verdicts)
    ordinary = float(np.median(contractions))
    true_erased = (contractions - ordinary) / (1 - ordinary)
    return Simulated(
        erased=true_erased,
        flagged=verdicts != "benign",
        confirmed=measures.confirmed,
        covered=(measures.erased.low <= true_erased) & (true_erased <= measures.erased.high),
    )


def true_contractions(generator: np.random.Generator, shape: Shape, size: int) -> Floats:
    """Draw the contraction of each token, shape (size,)."""
    contractions = ORDINARY_CONTRACTION + CONTRACTION_SPREAD * shape.ordinary(generator, size)
    is_sticky = generator.random(size) < shape.sticky_share
    erased = generator.uniform(*shape.erased, int(is_sticky.sum()))
    # Solve the definition of the erased share, (k - k0) / (1 - k0), for the contraction k.
    contractions[is_sticky] = ORDINARY_CONTRACTION + erased * (1 - ORDINARY_CONTRACTION)
    return contractions


def effects_in_carriers(generator: np.random.Generator, shape: Shape, contractions: Floats) -> RoundResults:
    """Draw what each carrier shows of the true effects, and return it as measurements of all tokens."""
    size = len(contractions)
    carriers = SETTINGS.screening_texts + SETTINGS.confirming_texts
    # Carriers multiply the effects of all tokens.
    gain = 1 + GAIN_SPREAD * generator.normal(size=carriers)
    gain /= gain.mean()
    noise = CONTRACTION_NOISE * shape.noise(generator, size * carriers).reshape(size, carriers)
    centre = np.median(contractions)
    in_carriers = centre + (contractions - centre)[:, None] * gain + noise
    return measurements_of(np.arange(size), in_carriers)


def measured_in_rounds(in_all_carriers: RoundResults, pilots: Ids) -> RuleInputs:
    """Measure the tokens as the rounds of a run do, and return the measures that the rule uses.

    Args:
        in_all_carriers: what every carrier shows of every token. A round sees only its tokens and carriers.
        pilots: ids of the tokens that are measured in all carriers first, ascending.
    """
    size, carriers = in_all_carriers.contractions.shape
    of_pilots = rows_of(in_all_carriers, pilots)
    lengths = np.ones(carriers, dtype=np.int64)  # all carriers are equally long
    screening_carriers = representative_carriers(
        of_pilots.contractions, lengths, np.arange(carriers), SETTINGS.screening_texts
    )
    confirming_carriers = [carrier for carrier in range(carriers) if carrier not in screening_carriers]

    def confirm(ids: Ids, _: str) -> RoundResults:
        """Return the measurements of a batch of tokens in the confirming carriers."""
        return rows_of(in_all_carriers, ids).in_carriers(confirming_carriers)

    after_screen = with_plan(
        screening_carriers,
        screened=in_all_carriers.in_carriers(screening_carriers),
        confirmed=of_pilots.in_carriers(confirming_carriers),
        pilots=pilots,
    )
    unconfirmed_ids = np.setdiff1d(np.arange(size), pilots)
    budgeted_tokens = tokens_to_confirm(SETTINGS, size)
    after_all_rounds = confirm_in_batches(after_screen, unconfirmed_ids, budgeted_tokens, confirm)
    return estimate(after_all_rounds).measures


def measurements_of(ids: Ids, contractions: Floats) -> RoundResults:
    """Return measurements of T tokens, with ascending ids, in K carriers; contractions have shape (T, K)."""
    effects = Effects(ids, contractions.mean(axis=1), np.zeros((len(contractions), 1)))
    return RoundResults(effects=effects, contractions=contractions)


def rows_of(measurements: RoundResults, ids: Ids) -> RoundResults:
    """Return the measurements of the tokens with these ids, which are also their row indices."""
    return measurements_of(ids, measurements.contractions[ids])


def with_plan(
    screening_carriers: list[int], screened: RoundResults, confirmed: RoundResults, pilots: Ids
) -> MeasuredJob:
    """Combine measurements with a plan and a job, of which the estimates need only pilots and settings."""
    plan = ProfilePlanRecord(carriers=[], pilots=pilots.tolist())
    job = cast(Job[ProfileSettings], SimpleNamespace(settings=SETTINGS, scope=Scope.WHOLE))
    return MeasuredJob(
        job=job,
        plan=plan,
        screening_carriers=screening_carriers,
        screened=screened,
        confirmed=confirmed,
        unconfirmed=0,
        vector_deviations=None,
    )


def check_shape(results: Results, title: str, vocabularies: list[Simulated]) -> None:
    """Check false flags, recall and the coverage of intervals over all tokens of some vocabularies."""
    reach = np.concatenate([vocabulary.reach for vocabulary in vocabularies])
    is_flagged = np.concatenate([vocabulary.flagged for vocabulary in vocabularies])
    flagged = int(is_flagged.sum())

    below_half = int((is_flagged & (reach < 0.5)).sum())
    check_name = f"{title}: flagged, true effect below half a threshold"
    results.check(check_name, "0", str(below_half), not below_half)

    below = int((is_flagged & (reach < 1)).sum())
    share_below = below / max(1, flagged)
    results.check(
        f"{title}: flagged, true effect below the threshold",
        "at most 10 %",
        f"{share_below:.1%} ({below} of {flagged})",
        share_below <= 0.1,
    )

    is_clear = reach >= 1.15
    if is_clear.any():
        recall = float(is_flagged[is_clear].mean())
        results.check(
            f"{title}: found, true effect 15 % above the threshold",
            "beside it",
            f"{recall:.1%} of {int(is_clear.sum())}",
        )

    is_confirmed = np.concatenate([vocabulary.confirmed for vocabulary in vocabularies])
    is_covered = np.concatenate([vocabulary.covered for vocabulary in vocabularies])
    results.check(
        f"{title}: intervals hold the truth, confirmed tokens",
        "beside it",
        f"{is_covered[is_confirmed].mean():.1%}",
    )


def main(quick: bool = False) -> None:
    """Check how often the rule errs on simulated vocabularies with known true effects. Takes minutes.

    Effects and noise have the sizes that were measured on all-MiniLM-L6-v2. For eleven distributions of
    effects, the benchmark counts the flagged tokens whose true effects are too small, the tokens with large
    effects that are flagged, and the intervals that contain the true effects. --quick simulates 6
    vocabularies of 4,000 tokens for each distribution, instead of 20 vocabularies of 20,000 tokens.
    """
    size = 20_000
    repeats = 20
    if quick:
        size = 4_000
        repeats = 6
    results = Results("calibration", tokens=size, vocabularies=repeats)
    for title, shape in SHAPES.items():
        vocabularies = [simulate(shape, size, seed) for seed in range(repeats)]
        check_shape(results, title, vocabularies)
    results.finish()


if __name__ == "__main__":
    commands(__doc__, main)
