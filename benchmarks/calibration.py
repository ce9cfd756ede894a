"""Do the profile method's intervals and error rates hold? Simulated vocabularies with known truth.

python benchmarks/calibration.py            # a few minutes
python benchmarks/calibration.py --quick    # seconds

Effects, noise and the covariate have the sizes that were measured on all-MiniLM-L6-v2. The code
that selects, estimates and judges is the package's own; only the measurements are drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checks import Check, show, write
from stickytoken.methods.profile.estimates import Measurements, TokenEstimates, estimate
from stickytoken.methods.profile.pull import pulls
from stickytoken.methods.profile.rounds import LATE_REFERENCE, Round, advancing, probes_in, tokens_in
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import find_outliers

Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Vector]

# Standard deviations on all-MiniLM-L6-v2: of ordinary lifts, of one probe around its token's
# effect, of the probes' common effects; spread of the similarities; growth of the effects from
# the last round to the first; residual of the token alone around its effect.
ORDINARY, PROBE, COMMON, SIMILARITIES, GROWTH, ALONE = 0.011, 0.0153, 0.004, 0.076, 1.25, 0.009
# The same of contraction: of ordinary tokens, of one probe; correlation with the lift.
CONTRACTION, PROBE_CONTRACTION, CORRELATION = 0.065, 0.12, -0.3
SETTINGS = ProfileSettings()


@dataclass(frozen=True)
class Shape:
    """A population of tokens.

    Attributes:
        name: of the row.
        ordinary: draws standardised effects of ordinary tokens.
        sticky: share of sticky tokens.
        lift: draws lifts of sticky tokens, above the typical token's.
        contraction: draws contractions of sticky tokens, above the typical token's.
        noise: draws standardised noise.
    """

    name: str
    ordinary: Draw
    sticky: float
    lift: Draw
    noise: Draw
    contraction: Draw


def normal(generator: np.random.Generator, size: int) -> Vector:
    return generator.normal(size=size)


def student(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray(generator.standard_t(5, size=size) / np.sqrt(5 / 3))


def laplace(generator: np.random.Generator, size: int) -> Vector:
    return generator.laplace(scale=np.sqrt(0.5), size=size)


def left_skewed(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray((8 - generator.gamma(8, size=size)) / np.sqrt(8))


def right_skewed(generator: np.random.Generator, size: int) -> Vector:
    return -left_skewed(generator, size)


def correlated(generator: np.random.Generator, values: Vector, correlation: float) -> Vector:
    """Standard values that go with the given ones."""
    return np.asarray(correlation * values + np.sqrt(1 - correlation**2) * generator.normal(size=len(values)))


def between(low: float, high: float) -> Draw:
    return lambda generator, size: generator.uniform(low, high, size)


FLAT = between(0.1, 0.4)
SHAPES = (
    Shape("normal, no sticky tokens", normal, 0.0, between(0.05, 0.1), normal, FLAT),
    Shape("normal, few sticky tokens", normal, 0.001, between(0.05, 0.1), normal, FLAT),
    Shape("normal, many sticky tokens", normal, 0.01, between(0.05, 0.1), normal, FLAT),
    Shape("normal, weak sticky tokens", normal, 0.005, between(0.03, 0.07), normal, FLAT),
    Shape("normal, heavy-tailed noise", normal, 0.002, between(0.05, 0.1), student, FLAT),
    Shape("skewed to the left", left_skewed, 0.002, between(0.05, 0.1), normal, FLAT),
    Shape("skewed to the right", right_skewed, 0.002, between(0.05, 0.1), normal, FLAT),
    Shape("Student t, 5 degrees of freedom", student, 0.002, between(0.05, 0.1), normal, FLAT),
    Shape("Laplace", laplace, 0.002, between(0.05, 0.1), normal, FLAT),
)


@dataclass(frozen=True)
class Simulated:
    """One vocabulary: truth and what the method made of it.

    Attributes:
        effects: true effects relative to the typical token.
        is_sticky: drawn as sticky.
        found: flagged.
        tokens: the estimates.
        confirmed: measured in the last round because of earlier rounds.
        smallest: the smallest effect that matters.
    """

    effects: Vector
    is_sticky: NDArray[np.bool_]
    found: NDArray[np.bool_]
    tokens: TokenEstimates
    confirmed: NDArray[np.bool_]
    smallest: float

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the interval holds the truth."""
        lift = self.tokens.lift
        return (lift.low <= self.effects) & (self.effects <= lift.high)

    @property
    def too_small(self) -> NDArray[np.bool_]:
        """Tokens whose true effect does not exceed the smallest one that matters."""
        return self.effects <= np.median(self.effects) + self.smallest


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary, run the rounds on it, judge."""
    generator = np.random.default_rng(seed)
    is_sticky = generator.random(size) < shape.sticky
    effects = ORDINARY * shape.ordinary(generator, size)
    effects[is_sticky] = shape.lift(generator, int(is_sticky.sum()))
    contraction = CONTRACTION * correlated(generator, effects / ORDINARY, CORRELATION)
    contraction[is_sticky] = shape.contraction(generator, int(is_sticky.sum()))
    effects -= effects.mean()
    alone = effects + ALONE * generator.normal(size=size)
    ids = np.arange(size)
    late = np.sort(generator.permutation(size)[:LATE_REFERENCE])
    rounds: dict[Round, Measurements] = {}
    confirmed = np.zeros(size, dtype=bool)
    for step, count in tokens_in(SETTINGS, size).items():
        chosen = ids
        if step is not Round.SCREEN:
            before = list(rounds.values())[-1].ids
            found, pull = judge(rounds, ids, late)
            chosen = advancing(before, found.tested.value[before], pull.tested.value[before], count)
            if step is Round.CONFIRM:
                confirmed[chosen] = True
            chosen = np.union1d(chosen, late)
        growth = GROWTH if step is Round.SCREEN else 1.0
        rounds[step] = measure(
            generator,
            shape,
            chosen,
            (growth * effects, growth * contraction, alone),
            growth,
            probes_in(SETTINGS)[step],
        )
    tokens, pull = judge(rounds, ids, late)
    smallest = SETTINGS.smallest_effect * SIMILARITIES
    return Simulated(
        effects,
        is_sticky,
        find_outliers(tokens, pull, size, smallest, SETTINGS).found,
        tokens,
        confirmed,
        smallest,
    )


def measure(
    generator: np.random.Generator,
    shape: Shape,
    ids: NDArray[np.int64],
    truth: tuple[Vector, Vector, Vector],
    growth: float,
    probes: int,
) -> Measurements:
    """Measurements of one round: effect, the probe's common effect, noise."""
    effects, contraction, alone = (values[ids] for values in truth)

    def measured(values: Vector, noise: float) -> Vector:
        drawn = shape.noise(generator, len(ids) * probes).reshape(len(ids), probes)
        common = COMMON / PROBE * noise * generator.normal(size=probes)
        return np.asarray(values[:, None] + common + growth * noise * drawn)

    lifts, slopes = measured(effects, PROBE), 1 - measured(contraction, PROBE_CONTRACTION)
    nothing, rest = np.zeros((len(ids), 1)), np.zeros(len(ids))
    return Measurements(ids, lifts, lifts, nothing, rest, slopes, rest, alone)


def judge(
    rounds: dict[Round, Measurements], ids: NDArray[np.int64], late: NDArray[np.int64]
) -> tuple[TokenEstimates, TokenEstimates]:
    """Estimates of the lift and of the pull."""
    parts = {step: measured.lifts for step, measured in rounds.items()}
    tokens = estimate(rounds, parts, ids, late, SETTINGS.confidence)
    pull = estimate(rounds, pulls(rounds, ids), ids, late, SETTINGS.confidence, tokens.null.shape)
    return tokens, pull


def summary(shape: Shape, size: int, repeats: int) -> list[Check]:
    """False discoveries, coverage and bias over repeated vocabularies."""
    runs = [simulate(shape, size, seed) for seed in range(repeats)]
    false = [float((run.found & run.too_small).sum()) / max(1, int(run.found.sum())) for run in runs]
    mislabelled = [float((run.found & ~run.is_sticky).sum()) / max(1, int(run.found.sum())) for run in runs]
    missed = [float((run.is_sticky & ~run.found).sum()) for run in runs]
    sticky = sum(int(run.is_sticky.sum()) for run in runs)
    covered = np.concatenate([run.covered for run in runs])
    selected = np.concatenate([run.covered[run.confirmed] for run in runs])
    errors = np.concatenate([(run.tokens.lift.value - run.effects)[run.confirmed] for run in runs])
    detail = {
        "power": 1 - sum(missed) / sticky if sticky else None,
        "flagged": float(np.mean([run.found.sum() for run in runs])),
        "bias_of_selected": float(errors.mean()),
        "vocabularies": repeats,
    }
    power = f"; power {detail['power']:.2f}" if sticky else ""
    return [
        false_discoveries(f"{shape.name}: flagged, effect too small", false, ""),
        false_discoveries(f"{shape.name}: flagged, drawn as ordinary", mislabelled, power, **detail),
        coverage(f"{shape.name}: intervals of all tokens", covered),
        coverage(f"{shape.name}: intervals of selected tokens", selected, f"; bias {errors.mean():+.5f}"),
    ]


def false_discoveries(name: str, shares: list[float], more: str, **detail: object) -> Check:
    """The rate may exceed its bar by two standard errors of the simulation."""
    bar, rate = 1.2 * SETTINGS.fdr, float(np.mean(shares))
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares)))
    detail |= {"false_discovery_rate": rate, "standard_error": error}
    ours = f"{rate:.3f} (+-{error:.3f}){more}"
    return Check(name, f"at most {bar:.2f}", ours, rate <= bar + 2 * error, detail)


def coverage(name: str, covered: NDArray[np.bool_], more: str = "") -> Check:
    share = float(covered.mean())
    return Check(name, "87 % to 93 %", f"{share:.1%}{more}", 0.87 <= share <= 0.93, {"coverage": share})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller vocabularies")
    parser.add_argument("--name", default="calibration", help="name of the result file")
    arguments = parser.parse_args()
    size, repeats = (6_000, 20) if arguments.quick else (20_000, 40)
    checks = [check for shape in SHAPES for check in summary(shape, size, repeats)]
    write(checks, arguments.name, "cpu", tokens=size, vocabularies=repeats)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
