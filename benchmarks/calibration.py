"""Do the profile method's intervals and error rates hold? Simulated vocabularies with known truth.

python benchmarks/calibration.py            # some minutes
python benchmarks/calibration.py --quick    # fewer and smaller vocabularies

Effects and noise have the sizes that were measured on all-MiniLM-L6-v2. Lifts are drawn as sums of effect
and noise in several shapes, or computed from simulated contractions and pulls on simulated anchors. The
code that chooses carriers and tokens, estimates and judges is the package's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checks import Check, show, write
from pulled import pulled_vocabulary
from simulated import SETTINGS, Simulated, Vector, judged
from stickytoken.methods.profile.estimates import Lifts
from stickytoken.methods.profile.plan import screening_carriers

Draw = Callable[[np.random.Generator, int], Vector]

# Standard deviations on all-MiniLM-L6-v2: of ordinary lifts, of one probe around its token's
# effect, of the probes' common effects; spread of the similarities; growth of the effects from
# the last round to the first.
ORDINARY, PROBE, COMMON, SIMILARITIES, GROWTH = 0.0067, 0.0065, 0.0064, 0.079, 1.03


@dataclass(frozen=True)
class Shape:
    """A population of tokens.

    Attributes:
        name: of the row.
        ordinary: draws standardised effects of ordinary tokens.
        sticky: share of sticky tokens.
        lift: draws lifts of sticky tokens, above the typical token's.
        noise: draws standardised noise.
    """

    name: str
    ordinary: Draw
    sticky: float
    lift: Draw
    noise: Draw


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


def between(low: float, high: float) -> Draw:
    return lambda generator, size: generator.uniform(low, high, size)


SHAPES = (
    Shape("normal, no sticky tokens", normal, 0.0, between(0.05, 0.1), normal),
    Shape("normal, few sticky tokens", normal, 0.001, between(0.05, 0.1), normal),
    Shape("normal, many sticky tokens", normal, 0.01, between(0.05, 0.1), normal),
    Shape("normal, weak sticky tokens", normal, 0.005, between(0.03, 0.07), normal),
    Shape("normal, heavy-tailed noise", normal, 0.002, between(0.05, 0.1), student),
    Shape("skewed to the left", left_skewed, 0.002, between(0.05, 0.1), normal),
    Shape("skewed to the right", right_skewed, 0.002, between(0.05, 0.1), normal),
    Shape("Student t, 5 degrees of freedom", student, 0.002, between(0.05, 0.1), normal),
    Shape("Laplace", laplace, 0.002, between(0.05, 0.1), normal),
)


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary, run the rounds on it, judge."""
    generator = np.random.default_rng(seed)
    is_sticky = generator.random(size) < shape.sticky
    effects = ORDINARY * shape.ordinary(generator, size)
    effects[is_sticky] = shape.lift(generator, int(is_sticky.sum()))
    effects -= effects.mean()

    def first() -> Vector:
        return measure(generator, shape, effects, GROWTH, screening_carriers(SETTINGS))

    def last(ids: NDArray[np.int64]) -> Vector:
        return measure(generator, shape, effects[ids], 1.0, SETTINGS.confirming_texts)

    return judged(generator, effects, is_sticky, Lifts(np.arange(size), first()), last, SIMILARITIES)


def measure(
    generator: np.random.Generator, shape: Shape, effects: Vector, growth: float, probes: int
) -> Vector:
    """Lifts of one round: effect, the probe's common effect, noise."""
    noise = growth * PROBE * shape.noise(generator, len(effects) * probes).reshape(len(effects), probes)
    return np.asarray(growth * effects[:, None] + COMMON * generator.normal(size=probes) + noise)


def summary(name: str, runs: list[Simulated]) -> list[Check]:
    """False discoveries, coverage and bias over repeated vocabularies."""
    false = [float((run.found & run.too_small).sum()) / max(1, int(run.found.sum())) for run in runs]
    drawn = [float((run.found & ~run.is_sticky).sum()) / max(1, int(run.found.sum())) for run in runs]
    missed = [float((run.is_sticky & ~run.found).sum()) for run in runs]
    sticky = sum(int(run.is_sticky.sum()) for run in runs)
    covered = np.concatenate([run.covered for run in runs])
    selected = np.concatenate([run.covered[run.confirmed] for run in runs])
    errors = np.concatenate([(run.tokens.lift.value - run.effects)[run.confirmed] for run in runs])
    detail = {
        "power": 1 - sum(missed) / sticky if sticky else None,
        "flagged": float(np.mean([run.found.sum() for run in runs])),
        "bias_of_selected": float(errors.mean()),
        "vocabularies": len(runs),
    }
    power = f"; power {detail['power']:.2f}" if sticky else ""
    return [
        false_discoveries(f"{name}: flagged, effect negligible", false, ""),
        false_discoveries(f"{name}: flagged, drawn as ordinary", drawn, power, **detail),
        coverage(f"{name}: intervals of all tokens", covered),
        coverage(f"{name}: intervals of selected tokens", selected, f"; bias {errors.mean():+.5f}"),
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
    checks = [
        check
        for shape in SHAPES
        for check in summary(shape.name, [simulate(shape, size, seed) for seed in range(repeats)])
    ]
    for share, name in ((0.0, "pulls, no sticky tokens"), (0.002, "pulls, few sticky tokens")):
        checks += summary(name, [pulled_vocabulary(size // 8, share, seed) for seed in range(repeats)])
    write(checks, arguments.name, "cpu", tokens=size, vocabularies=repeats)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
