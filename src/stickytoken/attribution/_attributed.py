"""The cosine of two texts by pairs of their parts, by each of the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.attribution._deletions import shapley_contributions
from stickytoken.attribution._parts import CutText
from stickytoken.attribution.methods import AttributionMethod
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.inspection import inspector_of
from stickytoken.inspection.similarity_matrix import Contributions, Watch, similarity_matrix
from stickytoken.measurement.progress import Progress, ProgressCallback

# Points of the integrals: the fewest with sums that are the unit vectors up to a norm, and with a
# product that is the similarity up to a share of it or an absolute error.
_STEPS = (8, 12, 16, 24, 32, 48, 64, 96)
_MISSED, _MISSED_SHARE, _LEAST_MISSED = 0.01, 0.01, 0.0001
# So many points suffice for the parts if the similarity is right.
_ENOUGH_STEPS = 16

_Attribute: TypeAlias = Callable[[CutText, Watch], Contributions]


def attributed(
    model: IdEncoder,
    texts: Sequence[CutText],
    similarity: float,
    method: AttributionMethod,
    progress: ProgressCallback,
) -> NDArray[np.float64]:
    """Return contributions of pairs of parts, the references last.

    Args:
        model: the model.
        texts: the two texts.
        similarity: their cosine.
        method: how it is divided.
        progress: called after every batch; a stage for each text.
    """
    attribute = _method(model, texts, similarity, method)
    found: list[Contributions] = []
    for name, text in zip(("first text", "second text"), texts, strict=True):
        equal = found and text.parts == texts[0].parts
        found.append(found[0] if equal else attribute(text, partial(_told, progress, name)))
    return similarity_matrix(*found)


def _method(
    model: IdEncoder, texts: Sequence[CutText], similarity: float, method: AttributionMethod
) -> _Attribute:
    if method is AttributionMethod.DELETION:
        return partial(shapley_contributions, model)
    return _by_jacobians(model, texts, similarity)


def _by_jacobians(model: IdEncoder, texts: Sequence[CutText], similarity: float) -> _Attribute:
    """Choose the points of the integrals; each text as one part is enough to know how many are needed."""
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector_of(model), most=1)
    allowed = max(_MISSED_SHARE * abs(similarity), _LEAST_MISSED)
    for steps in _STEPS:
        wholes = [integrator.contributions(text.ids, [0] * len(text.ids), steps) for text in texts]
        missed = abs(float(similarity_matrix(*wholes).sum()) - similarity)
        close = steps >= _ENOUGH_STEPS or max(each.error for each in wholes) <= _MISSED
        if missed <= allowed and close:
            break

    def attribute(text: CutText, watch: Watch) -> Contributions:
        return integrator.contributions(text.ids, text.labels, steps, watch)

    return attribute


def _told(progress: ProgressCallback, stage: str, done: int, total: int) -> None:
    progress(Progress(stage, done, total, done))
