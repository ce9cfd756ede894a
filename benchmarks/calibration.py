"""Do the profile method's intervals and error rates hold? Simulated vocabularies with known truth; minutes.

Effects and noise have the sizes that were measured on all-MiniLM-L6-v2. Lifts are drawn as sums of effect and
noise in several shapes, or computed from simulated contractions and pulls. --quick: fewer, smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import Results, commands, units
from stickytoken.methods.probes import AnchorPanel, CarrierPanel
from stickytoken.methods.profile import plan
from stickytoken.methods.profile.anchors import ProfileSettings, representative_carriers
from stickytoken.methods.profile.estimates import Lifts, TokenEstimates, estimate
from stickytoken.methods.profile.verdict import NEGLIGIBLE_SHARE, find_lifts
from stickytoken.methods.statistics import Pull, predicted_lifts

Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Vector]
SETTINGS = ProfileSettings()


class Simulated(NamedTuple):
    """One vocabulary: effects relative to the mean token, what was flagged, and what was measured in the
    last round because of the first."""

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

    def false_share(self, wrong: NDArray[np.bool_]) -> float:
        return float((self.found & wrong).sum()) / max(1, int(self.found.sum()))


def judged(
    effects: Vector,
    is_sticky: NDArray[np.bool_],
    first: Lifts,
    measure: Callable[[NDArray[np.int64]], Vector],
    spread: float,
    late: NDArray[np.int64],
) -> Simulated:
    """Send on the tokens that lift most, measure them and those of the pilot, late, again, and judge."""
    size = len(effects)
    screened = estimate(first, None, first.ids, late, SETTINGS.confidence)
    chosen = plan.highest(first.ids, screened.tested.value[:, None], plan.tokens_to_confirm(SETTINGS, size))
    both = np.union1d(chosen, late)
    tokens = estimate(first, Lifts(both, measure(both)), first.ids, late, SETTINGS.confidence)
    smallest = SETTINGS.smallest_effect * spread
    found = find_lifts(tokens, size, size, smallest, SETTINGS.fdr, tokens.lift.value).found
    return Simulated(effects, is_sticky, found, tokens, np.isin(first.ids, chosen), smallest)


def late_tokens(generator: np.random.Generator, size: int) -> NDArray[np.int64]:
    return np.sort(generator.permutation(size)[: plan.LATE_REFERENCE])


# Standard deviations on all-MiniLM-L6-v2: of ordinary lifts, of one probe around its token's
# effect, of the probes' common effects; spread of the similarities; growth of the effects from
# the last round to the first.
ORDINARY, PROBE, COMMON, SIMILARITIES, GROWTH = 0.0067, 0.0065, 0.0064, 0.079, 1.03


class Shape(NamedTuple):
    """Standardised effects of ordinary tokens, share of sticky ones, their lifts above the typical token's
    (lowest, highest), and standardised noise."""

    ordinary: Draw
    sticky: float
    lifts: tuple[float, float]
    noise: Draw


def normal(generator: np.random.Generator, size: int) -> Vector:
    return generator.normal(size=size)


def left_skewed(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray((8 - generator.gamma(8, size=size)) / np.sqrt(8))


def student(generator: np.random.Generator, size: int) -> Vector:
    return np.asarray(generator.standard_t(5, size=size) / np.sqrt(5 / 3))


def laplace(generator: np.random.Generator, size: int) -> Vector:
    return generator.laplace(scale=np.sqrt(0.5), size=size)


STRONG = (0.05, 0.1)
SHAPES = {
    "normal, no sticky tokens": Shape(normal, 0.0, STRONG, normal),
    "normal, few sticky tokens": Shape(normal, 0.001, STRONG, normal),
    "normal, many sticky tokens": Shape(normal, 0.01, STRONG, normal),
    "normal, weak sticky tokens": Shape(normal, 0.005, (0.03, 0.07), normal),
    "normal, heavy-tailed noise": Shape(normal, 0.002, STRONG, student),
    "skewed to the left": Shape(left_skewed, 0.002, STRONG, normal),
    "skewed to the right": Shape(lambda *drawn: -left_skewed(*drawn), 0.002, STRONG, normal),
    "Student t, 5 degrees of freedom": Shape(student, 0.002, STRONG, normal),
    "Laplace": Shape(laplace, 0.002, STRONG, normal),
}


def simulate(shape: Shape, size: int, seed: int) -> Simulated:
    """Draw a vocabulary, run the rounds on it, judge."""
    generator = np.random.default_rng(seed)
    is_sticky = generator.random(size) < shape.sticky
    effects = ORDINARY * shape.ordinary(generator, size)
    effects[is_sticky] = generator.uniform(*shape.lifts, int(is_sticky.sum()))
    effects -= effects.mean()

    def measure(effects: Vector, growth: float, probes: int) -> Vector:
        """Lifts of one round: effect, the probe's common effect, noise."""
        noise = growth * PROBE * shape.noise(generator, len(effects) * probes).reshape(len(effects), probes)
        return np.asarray(growth * effects[:, None] + COMMON * generator.normal(size=probes) + noise)

    first = Lifts(np.arange(size), measure(effects, GROWTH, plan.screening_carriers(SETTINGS)))
    late = late_tokens(generator, size)

    def last(ids: NDArray[np.int64]) -> Vector:
        return measure(effects[ids], 1.0, SETTINGS.confirming_texts)

    return judged(effects, is_sticky, first, last, SIMILARITIES, late)


def summary(results: Results, name: str, runs: list[Simulated]) -> None:
    """False discoveries, coverage and bias over repeated vocabularies."""
    bar = 1.2 * SETTINGS.fdr
    sticky = sum(int(run.is_sticky.sum()) for run in runs)
    found = sum(int((run.is_sticky & run.found).sum()) for run in runs)

    def false_discoveries(title: str, shares: list[float], more: str = "") -> None:
        """The rate may exceed its bar by two standard errors of the simulation."""
        rate, error = float(np.mean(shares)), float(np.std(shares, ddof=1) / np.sqrt(len(shares)))
        ours = f"{rate:.3f} (+-{error:.3f}){more}"
        results.check(f"{name}: flagged, {title}", f"at most {bar:.2f}", ours, rate <= bar + 2 * error)

    negligible = [
        run.false_share(run.effects <= np.median(run.effects) + NEGLIGIBLE_SHARE * run.smallest)
        for run in runs
    ]
    false_discoveries("effect negligible", negligible)
    power = f"; power {found / sticky:.2f}" if sticky else ""
    false_discoveries("drawn as ordinary", [run.false_share(~run.is_sticky) for run in runs], power)

    def coverage(title: str, covered: NDArray[np.bool_], more: str = "") -> None:
        share = float(covered.mean())
        bar, ours = "87 % to 93 %", f"{share:.1%}{more}"
        results.check(f"{name}: intervals of {title} tokens", bar, ours, 0.87 <= share <= 0.93)

    coverage("all", np.concatenate([run.covered for run in runs]))
    selected = np.concatenate([run.covered[run.confirmed] for run in runs])
    errors = np.concatenate([(run.tokens.lift.value - run.effects)[run.confirmed] for run in runs])
    coverage("selected", selected, f"; bias {errors.mean():+.5f}")


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

    def texts(groups: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Unit vectors around the centers of their groups."""
        own = generator.normal(size=(len(groups), DIMENSION)) / np.sqrt(DIMENSION)
        return units(centers[groups] + own).astype(np.float32)

    groups = np.repeat(np.arange(GROUPS, dtype=np.intp), ANCHORS // GROUPS)
    anchors = AnchorPanel(texts(groups), groups, np.full(GROUPS, 1 / GROUPS))
    carriers = texts(generator.integers(0, GROUPS, plan.carriers_needed(SETTINGS)))
    everything = texts(generator.integers(0, GROUPS, ALL_TEXTS))
    u = float((everything @ anchors.vectors.T).mean())
    panel = anchors.against(carriers, u)
    # Ordinary tokens pull each its own way, sticky ones to what is common.
    is_sticky = generator.random(size) < sticky
    pull = OWN * generator.normal(size=(size, DIMENSION)) / np.sqrt(DIMENSION)
    pull[:, 0] = ALONG * generator.normal(size=size)
    pull[is_sticky, 0] += generator.uniform(0.3, 0.6, int(is_sticky.sum()))
    tokens = Pull(generator.uniform(0.1, 0.5, size), pull)
    effects = predicted_lifts(tokens, anchors.against(everything, u))

    def response(row: int, panel: CarrierPanel) -> tuple[Vector, Vector]:
        """Lifts of one token, in all and by group, from vectors with copies and errors of their own."""
        noise = NOISE * generator.normal(size=panel.vectors.shape) / np.sqrt(DIMENSION)
        after = (1 - tokens.contraction[row]) * panel.vectors + tokens.pull[row] + noise
        lifts, groups, _ = panel.response(after[None].astype(np.float32))
        return lifts[0], groups[0]

    late = late_tokens(generator, size)
    pilot = np.stack([response(int(row), panel)[1] for row in late])
    few = representative_carriers(pilot, anchors.group_weights, plan.screening_carriers(SETTINGS))
    rest = [place for place in range(len(carriers)) if place not in few]

    def measure(ids: NDArray[Any], places: list[int]) -> Vector:
        kept = panel.chosen(places)
        return np.stack([response(int(row), kept)[0] for row in ids])

    first = Lifts(np.arange(size), measure(np.arange(size), few))
    mean = float((panel.before @ anchors.weights).mean())
    spread = float(np.sqrt((((panel.before - mean) ** 2) @ anchors.weights).mean()))
    centred = effects - effects.mean()
    return judged(centred, is_sticky, first, lambda ids: measure(ids, rest), spread, late)


def main(quick: bool = False) -> None:
    size, repeats = (6_000, 20) if quick else (20_000, 40)
    results = Results("calibration", tokens=size, vocabularies=repeats)
    for title, shape in SHAPES.items():
        summary(results, title, [simulate(shape, size, seed) for seed in range(repeats)])
    for share, title in ((0.0, "pulls, no sticky tokens"), (0.002, "pulls, few sticky tokens")):
        summary(results, title, [pulled_vocabulary(size // 8, share, seed) for seed in range(repeats)])
    results.finish()


if __name__ == "__main__":
    commands(__doc__, main)
