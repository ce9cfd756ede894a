"""Clean scores of a task: an encoder as it is, and a prompt with and without token prepending.

The published comparison reads token prepending from one layer and the plain prompt from another. Here both
are read from the same one; the plain prompt behind the last layer is shown beside them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from stickytoken.encoders.causal_prompt import CausalPromptEncoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.evaluation.sts import StsTask, cosines, spearman


@dataclass(frozen=True, slots=True)
class StsComparison:
    """One way of encoding.

    Attributes:
        encoding: ``as it is``, ``plain prompt`` or ``token prepending``.
        start: first layer that is overwritten; None without token prepending.
        exit: first later layer that is not.
        layer: that is read, from 1; None for a model without a prompt.
        spearman: Spearman correlation of cosines and scores x 100; None where all cosines are equal.
        pairs: pairs of the task.
        seconds: for all texts.
    """

    encoding: str
    start: int | None
    exit: int | None
    layer: int | None
    spearman: float | None
    pairs: int
    seconds: float


def compare_sts(encoder: Encoder, task: StsTask) -> list[StsComparison]:
    """Score an encoder; one with token prepending beside the plain prompt at the same layer.

    Raises:
        EncodingError: a sentence that the model cannot encode.
    """
    if not isinstance(encoder, CausalPromptEncoder):
        return [_scored(encoder, task, "as it is", None, None, None)]
    reading, layers = encoder.reading, encoder.layers
    number = reading.layer + layers + 1 if reading.layer < 0 else reading.layer
    plain = replace(reading, prepending=None)
    rows = [_scored(encoder.reread(plain), task, "plain prompt", None, None, number)]
    if number != layers:
        last = replace(plain, layer=-1)
        rows.insert(0, _scored(encoder.reread(last), task, "plain prompt", None, None, layers))
    if (span := reading.prepending) is not None:
        rows.append(_scored(encoder, task, "token prepending", span.start, min(span.exit, layers), number))
    return rows


def _scored(
    encoder: Encoder, task: StsTask, encoding: str, start: int | None, stop: int | None, layer: int | None
) -> StsComparison:
    started = time.perf_counter()
    vectors = encoder.encode([*task.first, *task.second])
    seconds = time.perf_counter() - started
    found = spearman(cosines(vectors[: len(task)], vectors[len(task) :]), task.scores)
    return StsComparison(encoding, start, stop, layer, found, len(task), seconds)
