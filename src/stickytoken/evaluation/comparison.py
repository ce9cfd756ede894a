"""Clean scores of a task: an encoder as it is, and a prompt with and without token prepending.

The published comparison reads token prepending from one layer and the plain prompt from another. Here both
are read from the same one; the plain prompt behind the last layer is shown beside them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.evaluation.tasks import AnyTask, MtebTask, fitting_texts, mteb_score, scores_of

_SEED = 42


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way of encoding.

    Attributes:
        name: ``as it is``, ``plain prompt`` or ``token prepending``.
        start: first layer that is overwritten; None without token prepending.
        exit: first later layer that is not.
        layer: that is read, from 1; None for a model without a prompt.
        encoder: what encodes so.
    """

    name: str
    start: int | None
    exit: int | None
    layer: int | None
    encoder: Encoder


@dataclass(frozen=True, slots=True)
class Score:
    """What a way of encoding scored.

    Attributes:
        encoding: its name; see `Encoding`.
        start: as of the encoding.
        exit: as of the encoding.
        layer: as of the encoding.
        scores: by metric, x 100; None where one is not defined.
        seconds: for everything.
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
        scores: one for each way of encoding; the first metric is the main one.
        cut: texts that were cut, alike in every way, because the model does not read them whole.
    """

    scores: list[Score] = field(default_factory=list)
    cut: int = 0


def encodings(encoder: Encoder) -> list[Encoding]:
    """An encoder as it is; one with a prompt also plain, behind the last layer and the one that is read."""
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
    """Score an encoder; one with token prepending beside the plain prompt at the same layer.

    Args:
        encoder: the model.
        task: from `find_task`.
        seed: of what is random in it, such as the start of a clustering.

    Raises:
        InputError: the data of a task of MTEB cannot be loaded.
        EncodingError: a text that the model cannot encode.
    """
    ways = encodings(encoder)
    if isinstance(task, MtebTask):
        return Comparison([_scored(each, lambda own: mteb_score(_module_of(own), task)) for each in ways])
    # All ways read the same texts; the prompt with the placeholder is the longest.
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
    """The encoder as MTEB takes it."""
    if isinstance(encoder, CausalPromptEncoder):
        return encoder.sentence_transformer()
    model = getattr(encoder, "model", None)
    if model is None:
        raise InputError(f"{encoder.name!r} is no SentenceTransformer: tasks of MTEB need one")
    return model
