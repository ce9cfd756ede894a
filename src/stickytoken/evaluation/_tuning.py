"""Choose the layers of token prepending or contrast by the score on pairs of sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import tasks
from stickytoken.data.metrics import SimilarityTask
from stickytoken.encoders.prompted import DEFAULT_STRENGTH, Contrast, ContrastRule, TokenPrepending
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.steering import layers_with_projection
from stickytoken.errors import InputError

# Pairs that are encoded at a time: vectors of all layers are held.
_PAIRS_AT_A_TIME = 256
# Largest number of exits of token prepending, and of layers of contrast, that are tried.
_MAX_EXITS = 12
_MAX_CONTRAST_LAYERS = 8
# Exits are tried up to this share of the depth.
_EXIT_DEPTH = 2 / 3
# Starts of token prepending that are tried, from 0, with the best exit.
_STARTS = 4
# Strengths of contrast that are tried at the best layer.
_STRENGTHS = (0.25, 0.5, 1.0, 2.0)


def read_similarity(path: Path) -> SimilarityTask:
    """Read pairs of sentences with scores.

    Raises:
        InputError: The file cannot be used, or is a task of another kind.
    """
    if not path.exists():
        raise InputError(f"there is no task file {str(path)!r}")
    task, _ = tasks.load_task(path)
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a {task.layout} task: pass pairs with sentence1, sentence2, score")
    return task


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

    @property
    def is_plain(self) -> bool:
        """Whether it has neither token prepending nor contrast."""
        return self.start is None and self.contrast_layer is None


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


@dataclass(frozen=True, slots=True)
class _Setting:
    """How a model is steered, at whatever layer it is read."""

    prepending: TokenPrepending | None = None
    contrast: Contrast | None = None


@dataclass(frozen=True)
class _Search:
    """What to try.

    Attributes:
        first: settings that are tried first; some are only compared with.
        is_tuned: whether a setting is one of those to choose from.
        refine: further settings, given the best of the first.
        max_refinements: largest number of them.
    """

    first: Sequence[_Setting]
    is_tuned: Callable[[Tried], bool]
    refine: Callable[[Tried], Sequence[_Setting]]
    max_refinements: int


def tune(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    *,
    start: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Score settings of token prepending at every layer."""
    if encoder.reading.prompt.echoes:
        raise InputError("an echo prompt has no layers to overwrite: use another prompt")
    layers = encoder.layers
    first_start = min(1, layers - 1) if start is None else start
    TokenPrepending(first_start, first_start + 1)  # raises for a start below 0
    if first_start >= layers:
        raise InputError(
            f"start is {first_start}, but {encoder.name} has {layers} layers: pass 0 to {layers - 1}"
        )
    # Exits to try: the layers up to two thirds of the depth, or evenly spread ones.
    last_exit = max(first_start + 1, round(_EXIT_DEPTH * layers))
    exit_count = min(_MAX_EXITS, last_exit - first_start)
    exits = sorted({round(layer) for layer in np.linspace(first_start + 1, last_exit, exit_count)})
    other_starts = [other for other in range(min(_STARTS, layers)) if other != first_start]

    def with_other_starts(best: Tried) -> list[_Setting]:
        stop = best.exit or layers
        return [_Setting(TokenPrepending(other, stop)) for other in other_starts if other < stop]

    search = _Search(
        first=[_Setting(), *(_Setting(TokenPrepending(first_start, end)) for end in exits)],
        is_tuned=lambda tried: tried.start is not None,
        refine=with_other_starts,
        max_refinements=len(other_starts),
    )
    return _tuned(encoder, task, search, progress)


def tune_contrast(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    *,
    layer: int | None = None,
    strength: float | None = None,
    rule: ContrastRule = ContrastRule.SCALED,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Score settings of contrast at every layer that can be read after it."""
    prepending = encoder.reading.prepending
    chooses_strength = rule.scales and strength is None
    first_strength = DEFAULT_STRENGTH if chooses_strength else strength
    layers = _contrast_layers(encoder) if layer is None else [layer]
    contrasts = [Contrast(contrast_layer, first_strength, rule) for contrast_layer in layers]
    other_strengths = [other for other in _STRENGTHS if chooses_strength and other != first_strength]
    # Refuse an impossible setting before any pass.
    encoder.reread(replace(encoder.reading, contrast=contrasts[0], layer=-1))

    def with_other_strengths(best: Tried) -> list[_Setting]:
        best_layer = best.contrast_layer or 0
        return [_Setting(prepending, Contrast(best_layer, other, rule)) for other in other_strengths]

    without_contrast = [_Setting()] if prepending is None else [_Setting(), _Setting(prepending)]
    search = _Search(
        first=[*without_contrast, *(_Setting(prepending, contrast) for contrast in contrasts)],
        is_tuned=lambda tried: tried.contrast_layer is not None,
        refine=with_other_strengths,
        max_refinements=len(other_strengths),
    )
    return _tuned(encoder, task, search, progress)


def _contrast_layers(encoder: CausalPromptEncoder) -> list[int]:
    """Return layers with a projection in the first half, or evenly spread ones."""
    possible_layers = layers_with_projection(encoder.prompted.decoder)
    early_layers = [layer for layer in possible_layers if layer <= encoder.layers // 2]
    candidates = early_layers or possible_layers or [0]
    places = np.linspace(0, len(candidates) - 1, min(_MAX_CONTRAST_LAYERS, len(candidates)))
    return [candidates[round(place)] for place in places]


def _tuned(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    search: _Search,
    progress: Callable[[int, int], None],
) -> Tuning:
    """Try all settings of a search at every layer, and choose the best."""
    tried: list[Tried] = []
    waiting = list(search.first)
    total = len(search.first) + search.max_refinements
    done = 0
    progress(0, total)
    while done < len(waiting):
        setting = waiting[done]
        tried += layers_scored(encoder, task, setting.prepending, setting.contrast)
        done += 1
        if done == len(search.first):
            waiting += search.refine(_best(filter(search.is_tuned, tried), encoder))
        progress(done if done < len(waiting) else total, total)
    best = _best(filter(search.is_tuned, tried), encoder)
    plain = [setting for setting in tried if setting.is_plain]
    return Tuning(tuple(tried), _best(plain, encoder), best, plain[best.layer - 1])


def _best(tried: Iterable[Tried], encoder: CausalPromptEncoder) -> Tried:
    """Return the first of the settings with the largest score."""
    scored = [setting for setting in tried if setting.spearman is not None]
    if not scored:
        raise InputError(
            f"{encoder.name} gives all pairs the same similarity at every layer: check the task and "
            "the prompt"
        )
    return max(scored, key=lambda setting: setting.spearman or 0.0)


def layers_scored(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    prepending: TokenPrepending | None,
    contrast: Contrast | None = None,
) -> list[Tried]:
    """Score one setting at every layer that it changes, in one pass."""
    # Read from the last layer: the encoder's own may come before the layer of contrast.
    reading = replace(encoder.reading, prepending=prepending, contrast=contrast, layer=-1)
    steered = encoder.reread(reading)
    first_layer = 1 if contrast is None else contrast.layer + 1
    numbers = range(first_layer, encoder.layers + 1)
    chunks = []
    for start in range(0, task.units, _PAIRS_AT_A_TIME):
        stop = start + _PAIRS_AT_A_TIME
        chunks.append(_cosines_by_layer(steered, task.first[start:stop], task.second[start:stop], numbers))
    by_layer = np.concatenate(chunks).T
    scores = 100 * task.scores("spearman", by_layer[:, :, None])
    return [
        Tried(
            start=None if prepending is None else prepending.start,
            exit=None if prepending is None else prepending.exit,
            layer=number,
            spearman=None if np.isnan(score) else float(score),
            contrast_layer=None if contrast is None else contrast.layer,
            contrast_strength=None if contrast is None else contrast.strength,
            contrast_rule=None if contrast is None else str(contrast.rule),
        )
        for number, score in zip(numbers, scores, strict=True)
    ]


def _cosines_by_layer(
    encoder: CausalPromptEncoder, first: Sequence[str], second: Sequence[str], numbers: Sequence[int]
) -> NDArray[np.float64]:
    """Return the cosine of every pair at every layer, shape (pairs, layers)."""
    vectors = encoder.encode_layers([*first, *second], numbers).astype(np.float64)
    left = vectors[: len(first)]
    right = vectors[len(first) :]
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosines: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return cosines
