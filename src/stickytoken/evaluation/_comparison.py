"""Score an encoder on a task, and compare token prepending with the plain prompt.

The published comparison reads token prepending from one layer and the plain prompt from another. Here both
are read from the same layer, and the plain prompt is also read from the last layer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.evaluation._tasks import AnyTask, MtebTask, fitting_texts, mteb_score, scores_of
from stickytoken.tasks.mteb import require_module

_SEED = 42


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way of encoding.

    Attributes:
        name: ``as it is``, ``plain prompt`` or ``token prepending``.
        start: First layer that is overwritten; None without token prepending.
        exit: First later layer that is not overwritten.
        layer: Layer that is read, from 1; None for a model without a prompt.
        encoder: The encoder.
    """

    name: str
    start: int | None
    exit: int | None
    layer: int | None
    encoder: Encoder


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one way of encoding.

    Attributes:
        encoding: Its name; see `Encoding`.
        start: As in `Encoding`.
        exit: As in `Encoding`.
        layer: As in `Encoding`.
        scores: Scores times 100 by metric; None where a metric is undefined.
        seconds: Time taken.
    """

    encoding: str
    start: int | None
    exit: int | None
    layer: int | None
    scores: dict[str, float | None]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Scores of a task.

    Attributes:
        scores: One item per way of encoding; the first metric is the main one.
        cut: Number of texts truncated to fit the model, the same for every way of encoding.
    """

    scores: list[Score] = field(default_factory=list)
    cut: int = 0


def encodings(encoder: Encoder) -> list[Encoding]:
    """List the ways to encode: the encoder itself and, if it has a prompt, the plain prompt."""
    if not isinstance(encoder, CausalPromptEncoder):
        return [Encoding("as it is", None, None, None, encoder)]
    reading, layers = encoder.reading, encoder.layers
    number = reading.layer + layers + 1 if reading.layer < 0 else reading.layer
    plain = replace(reading, prepending=None)
    found = [Encoding("plain prompt", None, None, number, encoder.reread(plain))]
    if number != layers:
        last = encoder.reread(replace(plain, layer=-1))
        found.insert(0, Encoding("plain prompt", None, None, layers, last))
    if (span := reading.prepending) is not None:
        found.append(Encoding("token prepending", span.start, min(span.exit, layers), number, encoder))
    return found


def compare(encoder: Encoder, task: AnyTask, *, seed: int = _SEED) -> Comparison:
    """Score an encoder, and its plain prompt at the same layer if it prepends tokens.

    Args:
        encoder: The model.
        task: A task from `find_task`.
        seed: Seed of random steps, such as the start of a clustering.

    Raises:
        InputError: The data of an MTEB task cannot be loaded.
        EncodingError: The model cannot encode a text.
    """
    ways = encodings(encoder)
    if isinstance(task, MtebTask):
        return Comparison([_scored(each, lambda own: mteb_score(_module_of(own), task)) for each in ways])
    # All ways get the same texts; the prompt with the placeholder leaves the least room.
    texts, cut = fitting_texts(encoder, task)

    def scores(own: Encoder) -> dict[str, float]:
        return scores_of(task, {role: own.encode(each) for role, each in texts.items()}, seed)

    return Comparison([_scored(each, scores) for each in ways], cut)


def _scored(way: Encoding, score: Any) -> Score:
    started = time.perf_counter()
    found = {
        metric: None if math.isnan(value) else 100 * value for metric, value in score(way.encoder).items()
    }
    return Score(way.name, way.start, way.exit, way.layer, found, time.perf_counter() - started)


def _module_of(encoder: Encoder) -> Any:
    """Return the encoder in the form that MTEB expects."""
    if isinstance(encoder, CausalPromptEncoder):
        return encoder.sentence_transformer()
    return require_module(encoder)
