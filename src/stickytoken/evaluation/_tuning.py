"""Choose the settings of token prepending or contrast on a development set, one at a time.

The exit layer of token prepending is chosen for a fixed start, then the start for that exit; the layer of
contrast for a fixed strength, then the strength for that layer. The authors of either also vary one setting
at a time (Fu et al., ACL 2025, figure 4; Cheng et al., ACL 2025). One pass with a setting scores every layer
that can be read after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.prompted.attention_output import layers_with_projection
from stickytoken.encoders.prompted.contrast import DEFAULT_STRENGTH, Contrast, ContrastRule
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
    """Return the setting with the highest score, the first of equals."""
    known = [(own.spearman, -place, own) for place, own in enumerate(tried) if own.spearman is not None]
    if not known:
        raise InputError(
            f"{name} gives all pairs the same similarity at every layer: check the task and the prompt"
        )
    return max(known)[2]


_MOST_LAYERS = 8
_STRENGTHS = (0.25, 0.5, 1.0, 2.0)


def tune_contrast(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    *,
    layer: int | None = None,
    strength: float | None = None,
    rule: ContrastRule = ContrastRule.SCALED,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Score settings of contrast at every layer that can be read after it.

    Args:
        encoder: An encoder with the prompt to tune, with or without token prepending, which is kept; its
            own contrast and layer are ignored.
        task: The development set.
        layer: Layer whose attention is changed, from 0; None tries up to eight in the first half.
        strength: Factor; None tries several with the best layer.
        rule: What replaces the values.
        progress: Called with the number of settings done and in total.

    Raises:
        InputError: A setting is impossible, or the model gives all pairs the same similarity.
        ModelError: A layer has no output projection of an attention.
    """
    span = encoder.reading.prepending
    first = DEFAULT_STRENGTH if strength is None and rule.scales else strength
    layers = _layers(encoder) if layer is None else [layer]
    chosen = [Contrast(each, first, rule) for each in layers]
    others = [each for each in _STRENGTHS if each != first] if rule.scales and strength is None else []
    # Refuse an impossible setting before any pass.
    encoder.reread(replace(encoder.reading, contrast=chosen[0], layer=-1))
    total = 1 + (span is not None) + len(chosen) + len(others)
    tried, done = [], 0

    def score(contrast: Contrast | None, *, prepending: bool = True) -> None:
        nonlocal done
        tried.extend(layers_scored(encoder, task, span if prepending else None, contrast))
        done += 1
        progress(done, total)

    progress(0, total)
    score(None, prepending=False)
    if span is not None:
        score(None)
    for each in chosen:
        score(each)
    place = _best(tried, encoder.name).contrast_layer
    for factor in others:
        score(Contrast(place or 0, factor, rule))
    best = _best(tried, encoder.name)
    plain = [own for own in tried if own.start is None and own.contrast_layer is None]
    return Tuning(tuple(tried), best_of(plain, encoder.name), best, plain[best.layer - 1])


def _best(tried: list[Tried], name: str) -> Tried:
    return best_of([own for own in tried if own.contrast_layer is not None], name)


def _layers(encoder: CausalPromptEncoder) -> list[int]:
    """List layers to try: those with a projection in the first half, or evenly spread ones."""
    possible = layers_with_projection(encoder.prompted.decoder)
    early = [layer for layer in possible if layer <= encoder.layers // 2] or possible or [0]
    places = np.linspace(0, len(early) - 1, min(_MOST_LAYERS, len(early)))
    return [early[round(place)] for place in places]
