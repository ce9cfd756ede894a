"""Do the profile method's intervals and error rates hold? Simulated vocabularies with known truth.

python benchmarks/calibration.py            # some minutes
python benchmarks/calibration.py --quick    # fewer and smaller vocabularies

Effects and noise have the sizes that were measured on all-MiniLM-L6-v2. Lifts are drawn as sums of effect
and noise in several shapes, or computed from simulated contractions and pulls on simulated anchors. The
code that chooses carriers and tokens, estimates and judges is the package's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import Check, check, commands, finish, units
from stickytoken.methods.probes import AnchorPanel, CarrierPanel
from stickytoken.methods.profile.anchors import ProfileSettings, representative_carriers
from stickytoken.methods.profile.estimates import Lifts, TokenEstimates, estimate
from stickytoken.methods.profile.plan import (
    LATE_REFERENCE,
    carriers_needed,
    highest,
    screening_carriers,
    tokens_to_confirm,
)
from stickytoken.methods.profile.verdict import NEGLIGIBLE_SHARE, find_lifts
from stickytoken.methods.statistics import Pull, anchorage, predicted_lifts

Vector = NDArray[np.float64]
SETTINGS = ProfileSettings()


@dataclass(frozen=True)
class Simulated:
    """One vocabulary: truth and what the method made of it.

    True effects are relative to the mean token; ``found`` was flagged, ``confirmed`` measured in the last
    round because of the first.
    """

    effects: Vector
    is_sticky: NDArray[np.bool_]
    found: NDArray[np.bool_]
    tokens: TokenEstimates
    confirmed: NDArray[np.bool_]
    smallest: float

    @property
    def covered(self) -> NDArray[np.bool_]:
        lift = self.tokens.lift
        return (lift.low <= self.effects) & (self.effects <= lift.high)

    @property
    def too_small(self) -> NDArray[np.bool_]:
        return self.effects <= np.median(self.effects) + NEGLIGIBLE_SHARE * self.smallest


def judged(
    generator: np.random.Generator,
    effects: Vector,
    is_sticky: NDArray[np.bool_],
    first: Lifts,
    measure: Callable[[NDArray[np.int64]], Vector],
    spread: float,
    late: NDArray[np.int64] | None = None,
) -> Simulated:
    """Send on the tokens that lift most, estimate and judge.

    ``measure`` measures tokens in the last round; ``late`` are the tokens of the pilot, None draws them.
    """
    size = len(effects)
    if late is None:
        late = np.sort(generator.permutation(size)[:LATE_REFERENCE])
    screened = estimate(first, None, first.ids, late, SETTINGS.confidence)
    chosen = highest(first.ids, screened.tested.value, tokens_to_confirm(SETTINGS, size))
    both = np.union1d(chosen, late)
    tokens = estimate(first, Lifts(both, measure(both)), first.ids, late, SETTINGS.confidence)
    smallest = SETTINGS.smallest_effect * spread
    found = find_lifts(tokens, size, size, smallest, SETTINGS.fdr).found
    return Simulated(effects, is_sticky, found, tokens, np.isin(first.ids, chosen), smallest)


Draw = Callable[[np.random.Generator, int], Vector]

# Standard deviations on all-MiniLM-L6-v2: of ordinary lifts, of one probe around its token's
# effect, of the probes' common effects; spread of the similarities; growth of the effects from
# the last round to the first.
ORDINARY, PROBE, COMMON, SIMILARITIES, GROWTH = 0.0067, 0.0065, 0.0064, 0.079, 1.03


@dataclass(frozen=True)
class Shape:
    """Standardised effects of ordinary tokens, share of sticky ones, their lifts above the typical token's,
    and standardised noise."""

    name: str
    ordinary: Draw
    sticky: float
    lift: Draw
    noise: Draw


def normal(generator: np.random.Generator, size: int) -> Vector:
    return generator.normal(size=size)


def left_skewed(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray((8 - generator.gamma(8, size=size)) / np.sqrt(8))


def student(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray(generator.standard_t(5, size=size) / np.sqrt(5 / 3))


def between(low: float, high: float) -> Draw:
    return lambda generator, size: generator.uniform(low, high, size)


STRONG = between(0.05, 0.1)
SHAPES = (
    Shape("normal, no sticky tokens", normal, 0.0, STRONG, normal),
    Shape("normal, few sticky tokens", normal, 0.001, STRONG, normal),
    Shape("normal, many sticky tokens", normal, 0.01, STRONG, normal),
    Shape("normal, weak sticky tokens", normal, 0.005, between(0.03, 0.07), normal),
    Shape("normal, heavy-tailed noise", normal, 0.002, STRONG, student),
    Shape("skewed to the left", left_skewed, 0.002, STRONG, normal),
    Shape(
        "skewed to the right", lambda generator, size: -left_skewed(generator, size), 0.002, STRONG, normal
    ),
    Shape("Student t, 5 degrees of freedom", student, 0.002, STRONG, normal),
    Shape(
        "Laplace",
        lambda generator, size: generator.laplace(scale=np.sqrt(0.5), size=size),
        0.002,
        STRONG,
        normal,
    ),
)


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary, run the rounds on it, judge."""
    generator = np.random.default_rng(seed)
    is_sticky = generator.random(size) < shape.sticky
    effects = ORDINARY * shape.ordinary(generator, size)
    effects[is_sticky] = shape.lift(generator, int(is_sticky.sum()))
    effects -= effects.mean()

    first = measure(generator, shape, effects, GROWTH, screening_carriers(SETTINGS))

    def last(ids: NDArray[np.int64]) -> Vector:
        return measure(generator, shape, effects[ids], 1.0, SETTINGS.confirming_texts)

    return judged(generator, effects, is_sticky, Lifts(np.arange(size), first), last, SIMILARITIES)


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


def false_discoveries(name: str, shares: list[float], more: str, **detail: Any) -> Check:
    """The rate may exceed its bar by two standard errors of the simulation."""
    bar, rate = 1.2 * SETTINGS.fdr, float(np.mean(shares))
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares)))
    detail |= {"false_discovery_rate": rate, "standard_error": error}
    ours = f"{rate:.3f} (+-{error:.3f}){more}"
    return check(name, f"at most {bar:.2f}", ours, rate <= bar + 2 * error, **detail)


def coverage(name: str, covered: NDArray[np.bool_], more: str = "") -> Check:
    share = float(covered.mean())
    return check(name, "87 % to 93 %", f"{share:.1%}{more}", 0.87 <= share <= 0.93, coverage=share)


# Simulated contractions and pulls, and the lifts that follow from them on simulated anchors.
DIMENSION, GROUPS, ANCHORS = 64, 11, 220
# Carriers that stand for all texts: the truth is the mean lift on them.
ALL_TEXTS = 2000
# Mean vector of a group, of all texts beside their own; pulls along what all texts share and of a token's
# own; contractions; error of a vector with copies.
SHARED, OF_GROUP, ALONG, OWN, NOISE = 0.3, 0.35, 0.04, 0.3, 0.25


def pulled_vocabulary(size: int, sticky: float, seed: int) -> Simulated:
    """Simulate pulls and contractions, measure lifts as a run does, judge."""
    generator = np.random.default_rng(seed)
    centers = OF_GROUP * units(generator.normal(size=(GROUPS, DIMENSION)))
    centers[:, 0] += SHARED
    groups = np.repeat(np.arange(GROUPS, dtype=np.intp), ANCHORS // GROUPS)
    anchors = AnchorPanel(texts(generator, centers, groups), groups, np.full(GROUPS, 1 / GROUPS))
    carriers = texts(generator, centers, generator.integers(0, GROUPS, carriers_needed(SETTINGS)))
    everything = texts(generator, centers, generator.integers(0, GROUPS, ALL_TEXTS))
    u = float((everything @ anchors.vectors.T).mean())
    panel = anchors.against(carriers, u)
    is_sticky = generator.random(size) < sticky
    tokens = drawn_tokens(generator, is_sticky)
    effects = predicted_lifts(tokens, anchorage(anchors.against(everything, u)))
    late = np.sort(generator.permutation(size)[:LATE_REFERENCE])
    pilot = np.stack([response(generator, tokens, int(row), panel)[1] for row in late])
    few = representative_carriers(pilot, anchors.group_weights, screening_carriers(SETTINGS))
    rest = [place for place in range(len(carriers)) if place not in few]

    def measure(ids: NDArray[Any], places: list[int]) -> Vector:
        kept = panel.chosen(places)
        return np.stack([response(generator, tokens, int(row), kept)[0] for row in ids])

    first = Lifts(np.arange(size), measure(np.arange(size), few))
    mean = float((panel.before @ anchors.weights).mean())
    spread = float(np.sqrt((((panel.before - mean) ** 2) @ anchors.weights).mean()))
    return judged(
        generator, effects - effects.mean(), is_sticky, first, lambda ids: measure(ids, rest), spread, late
    )


def drawn_tokens(generator: np.random.Generator, is_sticky: NDArray[np.bool_]) -> Pull:
    """Draw ordinary tokens, which pull each its own way, and sticky ones, which pull to what is common."""
    size = len(is_sticky)
    pull = OWN * generator.normal(size=(size, DIMENSION)) / np.sqrt(DIMENSION)
    pull[:, 0] = ALONG * generator.normal(size=size)
    pull[is_sticky, 0] += generator.uniform(0.3, 0.6, int(is_sticky.sum()))
    return Pull(generator.uniform(0.1, 0.5, size), pull)


def response(
    generator: np.random.Generator, tokens: Pull, row: int, panel: CarrierPanel
) -> tuple[Vector, Vector]:
    """Lifts of one token, in all and by group, from vectors with copies and errors of their own."""
    noise = NOISE * generator.normal(size=panel.vectors.shape) / np.sqrt(DIMENSION)
    after = (1 - tokens.contraction[row]) * panel.vectors + tokens.pull[row] + noise
    found = panel.response(after[None].astype(np.float32))
    return found.lifts[0], found.groups[0]


def texts(
    generator: np.random.Generator, centers: Vector, groups: NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """Unit vectors around the centers of their groups."""
    own = generator.normal(size=(len(groups), DIMENSION)) / np.sqrt(DIMENSION)
    return units(centers[groups] + own).astype(np.float32)


def main(quick: bool = False, name: str = "calibration") -> None:
    size, repeats = (6_000, 20) if quick else (20_000, 40)
    checks = []
    for shape in SHAPES:
        checks += summary(shape.name, [simulate(shape, size, seed) for seed in range(repeats)])
    for share, title in ((0.0, "pulls, no sticky tokens"), (0.002, "pulls, few sticky tokens")):
        checks += summary(title, [pulled_vocabulary(size // 8, share, seed) for seed in range(repeats)])
    finish(checks, name, tokens=size, vocabularies=repeats)


if __name__ == "__main__":
    commands(__doc__, main)
