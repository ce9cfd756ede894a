"""Choose the layers of token prepending on a development set, one setting at a time.

The exit layer is chosen first, for a fixed start, then the start for that exit. The authors also vary one
setting at a time (Fu et al., ACL 2025, figure 4). One pass with a setting scores every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.prompted.contrast import Contrast
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.token_prepending import TokenPrepending
from stickytoken.errors import InputError
from stickytoken.evaluation._tasks import SimilarityTask, cosines

_CHUNK = 256
_MOST_EXITS = 12
_STARTS = 4


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting and its score.

    Attributes:
        start: First layer that is overwritten; None without token prepending.
        exit: First later layer that is not overwritten.
        layer: Layer that is read, from 1.
        spearman: Spearman correlation times 100; None if all cosines are equal.
        contrast_layer: Layer whose attention contrast changes, from 0; None without contrast.
        contrast_strength: Its factor; None for a rule without one.
        contrast_rule: Its rule.
    """

    start: int | None
    exit: int | None
    layer: int
    spearman: float | None
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None


@dataclass(frozen=True)
class Tuning:
    """All settings that were tried, in order, and the best ones.

    Attributes:
        tried: All settings at all layers; of contrast, the layers after the one that it changes.
        plain: The best layer of the plain prompt.
        best: The best setting of what was tuned, token prepending or contrast.
        plain_at_best: The plain prompt at the layer of the best setting.
    """

    tried: tuple[Tried, ...]
    plain: Tried
    best: Tried
    plain_at_best: Tried


def tune(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    *,
    start: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Score settings of token prepending at every layer.

    Args:
        encoder: An encoder with the prompt to tune; its own setting and layer are ignored.
        task: The development set.
        start: First layer that is overwritten while the exit is chosen; None is 1, the second layer.
        progress: Called with the number of settings done and in total.

    Raises:
        InputError: The prompt is an echo, or the model gives all pairs the same similarity.
    """
    if encoder.reading.prompt.echoes:
        raise InputError("an echo prompt has no layers to overwrite: use another prompt")
    layers = encoder.layers
    first = min(1, layers - 1) if start is None else start
    TokenPrepending(first, first + 1).require_layers(layers, encoder.name)
    exits = _exits(first, layers)
    others = [each for each in range(min(_STARTS, layers)) if each != first]
    total = 1 + len(exits) + len(others)
    tried: list[Tried] = []

    def score(span: TokenPrepending | None) -> None:
        tried.extend(layers_scored(encoder, task, span))
        progress(len(tried) // layers, total)

    progress(0, total)
    score(None)
    for each in exits:
        score(TokenPrepending(first, each))
    stop = best_of([own for own in tried if own.start is not None], encoder.name).exit or layers
    for each in others:
        if each < stop:
            score(TokenPrepending(each, stop))
    best = best_of([own for own in tried if own.start is not None], encoder.name)
    plain = [own for own in tried if own.start is None]
    progress(total, total)
    return Tuning(tuple(tried), best_of(plain, encoder.name), best, plain[best.layer - 1])


def _exits(start: int, layers: int) -> list[int]:
    """List exits to try: the layers up to two thirds of the depth, or evenly spread ones."""
    last = max(start + 1, round(2 * layers / 3))
    places = np.linspace(start + 1, last, min(_MOST_EXITS, last - start))
    return sorted({round(place) for place in places})


def layers_scored(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    span: TokenPrepending | None,
    contrast: Contrast | None = None,
) -> list[Tried]:
    """Score one setting at every layer that it changes, in one pass."""
    # Read from the last layer: the encoder's own may come before the layer of contrast.
    own = encoder.reread(replace(encoder.reading, prepending=span, contrast=contrast, layer=-1))
    numbers = range(1 if contrast is None else contrast.layer + 1, encoder.layers + 1)
    found = _similarities(own, task, numbers)
    start, stop = (None, None) if span is None else (span.start, span.exit)
    added = () if contrast is None else (contrast.layer, contrast.strength, str(contrast.rule))
    scores = 100 * task.scores("spearman", found.T[:, :, None])
    return [
        Tried(start, stop, number, None if np.isnan(score) else float(score), *added)
        for number, score in zip(numbers, scores, strict=True)
    ]


def _similarities(
    encoder: CausalPromptEncoder, task: SimilarityTask, numbers: Sequence[int]
) -> NDArray[np.float64]:
    """Return the cosine of every pair at every layer, shape (pairs, layers), a few pairs at a time."""
    parts = []
    for place in range(0, task.units, _CHUNK):
        first, second = task.first[place : place + _CHUNK], task.second[place : place + _CHUNK]
        vectors = encoder.encode_layers([*first, *second], numbers)
        parts.append(cosines(vectors[: len(first)], vectors[len(first) :]))
    return np.concatenate(parts)


def best_of(tried: Sequence[Tried], name: str) -> Tried:
    """Return the setting with the highest score, the first of equals.

    Raises:
        InputError: No score is defined.
    """
    known = [(own.spearman, -place, own) for place, own in enumerate(tried) if own.spearman is not None]
    if not known:
        raise InputError(
            f"{name} gives all pairs the same similarity at every layer: check the task and the prompt"
        )
    return max(known)[2]
