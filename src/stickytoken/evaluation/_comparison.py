"""Score an encoder on a task, and compare token prepending and contrast with the plain prompt.

The published comparison reads token prepending from one layer and the plain prompt from another. Here all
are read from the same layer, and the plain prompt is also read from the last layer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from stickytoken.encoders.prompted.contrast import Contrast
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.protocol import Encoder
from stickytoken.evaluation._tasks import AnyTask, MtebTask, fitting_texts, mteb_score, scores_of
from stickytoken.tasks.mteb import require_module

_SEED = 42


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way of encoding.

    Attributes:
        name: ``as it is``, ``plain prompt``, ``token prepending``, ``contrast`` or both of these, separated
            by a comma.
        start: First layer that is overwritten; None without token prepending.
        exit: First later layer that is not overwritten.
        layer: Layer that is read, from 1; None for a model without a prompt.
        encoder: The encoder.
        contrast: Layer, strength and rule of contrast; None without it.
    """

    name: str
    start: int | None
    exit: int | None
    layer: int | None
    encoder: Encoder
    contrast: Contrast | None = None


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
        contrast_layer: Layer whose attention contrast changes, from 0; None without it.
        contrast_strength: Its factor; None for a rule without one.
        contrast_rule: Its rule.
    """

    encoding: str
    start: int | None
    exit: int | None
    layer: int | None
    scores: dict[str, float | None]
    seconds: float
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None


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
    """List the ways to encode: the encoder itself and, if it has a prompt, the plain prompt.

    An encoder with token prepending and contrast is also read with each of them alone.
    """
    if not isinstance(encoder, CausalPromptEncoder):
        return [Encoding("as it is", None, None, None, encoder)]
    reading, layers = encoder.reading, encoder.layers
    number = reading.layer + layers + 1 if reading.layer < 0 else reading.layer
    plain = replace(reading, prepending=None, contrast=None)
    found = [Encoding("plain prompt", None, None, number, encoder.reread(plain))]
    if number != layers:
        last = encoder.reread(replace(plain, layer=-1))
        found.insert(0, Encoding("plain prompt", None, None, layers, last))
    span, contrast = reading.prepending, reading.contrast
    start, stop = (None, None) if span is None else (span.start, min(span.exit, layers))
    if span is not None:
        own = encoder if contrast is None else encoder.reread(replace(reading, contrast=None))
        found.append(Encoding("token prepending", start, stop, number, own))
    if contrast is not None:
        own = encoder if span is None else encoder.reread(replace(reading, prepending=None))
        found.append(Encoding("contrast", None, None, number, own, contrast))
    if span is not None and contrast is not None:
        found.append(Encoding("token prepending, contrast", start, stop, number, encoder, contrast))
    return found


def compare(encoder: Encoder, task: AnyTask, *, seed: int = _SEED) -> Comparison:
    """Score an encoder, and its plain prompt at the same layer if it uses token prepending or contrast.

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
    # All ways get the same texts; of all, the encoder itself has the longest prompts.
    texts, cut = fitting_texts(encoder, task)

    def scores(own: Encoder) -> dict[str, float]:
        return scores_of(task, {role: own.encode(each) for role, each in texts.items()}, seed)

    return Comparison([_scored(each, scores) for each in ways], cut)


def _scored(way: Encoding, score: Any) -> Score:
    started = time.perf_counter()
    found = {
        metric: None if math.isnan(value) else 100 * value for metric, value in score(way.encoder).items()
    }
    seconds, contrast = time.perf_counter() - started, way.contrast
    own = () if contrast is None else (contrast.layer, contrast.strength, str(contrast.rule))
    return Score(way.name, way.start, way.exit, way.layer, found, seconds, *own)


def _module_of(encoder: Encoder) -> Any:
    """Return the encoder in the form that MTEB expects."""
    if isinstance(encoder, CausalPromptEncoder):
        return encoder.sentence_transformer()
    return require_module(encoder)
