"""Simulated contractions and pulls, and the lifts that follow from them on simulated anchors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulated import SETTINGS, Simulated, Vector, judged
from stickytoken.methods.probes import AnchorPanel, CarrierPanel
from stickytoken.methods.profile.anchors import representative_carriers
from stickytoken.methods.profile.estimates import Lifts
from stickytoken.methods.profile.plan import LATE_REFERENCE, carriers_needed, screening_carriers
from stickytoken.methods.statistics import Pull, anchorage, predicted_lifts

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
        generator,
        effects - effects.mean(),
        is_sticky,
        first,
        lambda ids: measure(ids, rest),
        spread,
        late,
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
    found = panel.response(after.astype(np.float32))
    return found.lifts, found.groups


def texts(
    generator: np.random.Generator, centers: Vector, groups: NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """Unit vectors around the centers of their groups."""
    own = generator.normal(size=(len(groups), DIMENSION)) / np.sqrt(DIMENSION)
    return units(centers[groups] + own).astype(np.float32)


def units(vectors: Vector) -> Vector:
    """Scale vectors to length 1."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
