"""Choose the layer and the strength of contrast on a development set, one after the other.

The layer is chosen first, for a fixed strength, then the strength for that layer, as the authors vary them
(Cheng et al., ACL 2025). One pass with a setting scores every layer that can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stickytoken.encoders.prompted.attention_output import layers_with_projection
from stickytoken.encoders.prompted.contrast import DEFAULT_STRENGTH, Contrast, ContrastRule
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.evaluation._tasks import SimilarityTask
from stickytoken.evaluation._tuning import Tried, Tuning, best_of, layers_scored

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
