"""Shapley values of the parts of a text for its vector.

Shapley, "A Value for n-Person Games" (1953): the value of a part is what it adds to the parts before it,
averaged over all orders of the parts. What is divided here is the unit vector itself, so the product of the
values of two parts of two texts is their share of the cosine (the values are linear in what is divided). No
parts have the vector zero: a text without words has no direction. The values therefore sum to the vector
exactly, whatever the orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from stickytoken.attribution._parts import CutText
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.inspection.similarity_matrix import Contributions, Watch
from stickytoken.unit_vectors import exact_unit_vectors

# Up to this many parts, all sets of parts are encoded, and the values are exact.
_EXACT = 8
# More parts: about this many texts are encoded, in at least so many orders. Each order comes with its
# reverse, which lowers the error of the mean.
_ENCODED, _LEAST_ORDERS = 512, 16
_BATCH = 256
_SEED = 0

Parts = frozenset[int]


def shapley_contributions(model: IdEncoder, text: CutText, watch: Watch) -> Contributions:
    """Divide the unit vector of a text among its parts.

    Args:
        model: the model.
        text: the text in parts.
        watch: called with the number of texts encoded, and of all texts to encode.
    """
    count = len(text.parts)
    steps = _all_steps(count) if count <= _EXACT else _random_steps(count)
    subsets = {each for part, before in steps for each in (before, before | {part}) if each}
    ordered = sorted(subsets, key=lambda each: (len(each), sorted(each)))
    vectors = _vectors(model, text, ordered, watch)
    whole = vectors[frozenset(range(count))]
    values = np.zeros((count, len(whole)))
    for (part, before), weight in steps.items():
        values[part] += weight * (vectors[before | {part}] - vectors[before])
    return Contributions(whole, np.zeros_like(whole), values)


def _all_steps(count: int) -> dict[tuple[int, Parts], float]:
    """Return each part with each set of others, and the share of all orders with that set before it."""
    return {
        (part, frozenset(before)): 1 / (count * comb(count - 1, size))
        for part in range(count)
        for size in range(count)
        for before in combinations([other for other in range(count) if other != part], size)
    }


def _random_steps(count: int) -> dict[tuple[int, Parts], float]:
    """Return the same for random orders, which depend on the number of parts alone."""
    generator = np.random.default_rng((_SEED, count))
    pairs = max(_LEAST_ORDERS, _ENCODED // count) // 2
    drawn = [generator.permutation(count).tolist() for _ in range(pairs)]
    orders = [order for each in drawn for order in (each, each[::-1])]
    steps = Counter((part, frozenset(order[:place])) for order in orders for place, part in enumerate(order))
    return {step: times / len(orders) for step, times in steps.items()}


def _vectors(
    model: IdEncoder, text: CutText, subsets: Sequence[Parts], watch: Watch
) -> dict[Parts, NDArray[np.float64]]:
    """Return the unit vectors of sets of parts; zeros where the model has no direction, and for no parts."""
    found: list[NDArray[np.float64]] = []
    for begin in range(0, len(subsets), _BATCH):
        batch = subsets[begin : begin + _BATCH]
        vectors = model.encode_ids([text.only(each) for each in batch], allow_zero=True)
        found.extend(exact_unit_vectors(vectors))
        watch(begin + len(batch), len(subsets))
    return {frozenset(): np.zeros_like(found[0])} | dict(zip(subsets, found, strict=True))
