"""Choose the layers for token prepending or contrast by their score on sentence pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import tasks
from stickytoken.data.metrics import SimilarityTask
from stickytoken.encoders.prompted import DEFAULT_STRENGTH, Contrast, TokenPrepending
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.steering import layers_with_projection
from stickytoken.errors import InputError
from stickytoken.evaluation._reading import ReportedReading, steering
from stickytoken.settings.prompting import ContrastRule

# Number of pairs that are encoded at a time; small, because the vectors of all layers are kept in memory.
_PAIRS_AT_A_TIME = 256
# Maximum number of exit layers to try for token prepending.
_MAX_EXITS = 12
# Maximum number of layers to try for contrast.
_MAX_CONTRAST_LAYERS = 8
# Deepest exit layer to try, as a share of the number of layers.
_EXIT_DEPTH = 2 / 3
# Number of start layers, from layer 0, to try for token prepending with the best exit layer.
_STARTS = 4
# Strengths to try for contrast at the best layer.
_STRENGTHS = (0.25, 0.5, 1.0, 2.0)


def read_similarity(path: Path) -> SimilarityTask:
    """Read a task of sentence pairs with similarity scores.

    Raises:
        InputError: The file cannot be used, or it holds a different kind of task.
    """
    if not path.exists():
        raise InputError(f"there is no task file {str(path)!r}")
    task, _ = tasks.load_task(path)
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a {task.layout} task: pass pairs with sentence1, sentence2, score")
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried(ReportedReading):
    """One setting at one layer, and its score.

    Attributes:
        layer: 1-based layer from which the vector is read.
        spearman: Spearman correlation times 100; None if all cosines are equal.
    """

    layer: int
    spearman: float | None

    @property
    def is_plain(self) -> bool:
        """Whether the setting uses neither token prepending nor contrast."""
        return self.start is None and self.contrast_layer is None


@dataclass(frozen=True)
class Tuning:
    """All settings that were tried, in order, and the best ones.

    Attributes:
        tried: Every setting at every layer from which the vector can be read, in ascending order of layers
            for each setting. These are the layers that the first copied state of token prepending reaches,
            and those after the one that contrast changes.
        best: What scored best, at its best layer. This may be the plain prompt.
        tuned: The best setting of the technique that was tuned (token prepending or contrast), at its best
            layer.
        plain: The plain prompt at its best layer.
        plain_at_tuned: The plain prompt at the layer of ``tuned``.
    """

    tried: tuple[Tried, ...]
    best: Tried
    tuned: Tried
    plain: Tried
    plain_at_tuned: Tried


@dataclass(frozen=True, slots=True)
class _Setting:
    """Token prepending and contrast, without the layer from which the vector is read."""

    prepending: TokenPrepending | None = None
    contrast: Contrast | None = None


@dataclass(frozen=True)
class _Search:
    """The settings of a search, in two rounds.

    Attributes:
        first: Settings of the first round. The plain prompt comes first, so that it wins a tie.
        is_tuned: Function that says whether a setting uses the technique that is tuned.
        refine: Function that takes the best tuned setting of the first round, and returns the settings of
            the second round.
        max_refinements: Maximum number of settings in the second round.
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
    """Score the plain prompt and different layers of token prepending, and choose the best.

    The first round tries several exit layers. The second round tries other start layers with the best exit
    layer. Each setting is scored at every layer of the model from which the vector can be read.

    Args:
        encoder: The language model with its prompt.
        task: Pairs of sentences with similarity scores.
        start: The start layer of token prepending in the first round: the first layer that token prepending
            overwrites. If None, the start layer is layer 1.
        progress: Called with the number of settings scored so far and the total number.

    Returns:
        All settings with their scores, and the best setting.

    Raises:
        InputError: The prompt is an echo prompt, or the model has no layer ``start``.
    """
    if encoder.reading.prompt.echoes:
        raise InputError("token prepending cannot be used with an echo prompt: use another prompt")
    layers = encoder.layers
    first_start = min(1, layers - 1) if start is None else start
    TokenPrepending(first_start, first_start + 1)  # raises an error for a start below 0
    if first_start >= layers:
        raise InputError(
            f"start is {first_start}, but {encoder.name} has {layers} layers: pass 0 to {layers - 1}"
        )
    exits = _exits_to_try(first_start, layers)
    other_starts = [layer for layer in range(min(_STARTS, layers)) if layer != first_start]

    def with_other_starts(best: Tried) -> list[_Setting]:
        """Return the settings of the second round: other start layers with the best exit layer."""
        best_exit = best.exit or layers  # the best setting uses token prepending, so it has an exit
        earlier_starts = [layer for layer in other_starts if layer < best_exit]
        return [_Setting(TokenPrepending(layer, best_exit)) for layer in earlier_starts]

    search = _Search(
        first=[_Setting(), *(_Setting(TokenPrepending(first_start, end)) for end in exits)],
        is_tuned=lambda tried: tried.start is not None,  # whether the setting uses token prepending
        refine=with_other_starts,
        max_refinements=len(other_starts),
    )
    return _tuned(encoder, task, search, progress)


def _exits_to_try(start: int, layers: int) -> list[int]:
    last_exit = max(start + 1, round(_EXIT_DEPTH * layers))
    count = min(_MAX_EXITS, last_exit - start)
    return sorted({round(layer) for layer in np.linspace(start + 1, last_exit, count)})


def tune_contrast(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    *,
    layer: int | None = None,
    strength: float | None = None,
    rule: ContrastRule = ContrastRule.SCALED,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Score the plain prompt and different layers and strengths of contrast, and choose the best.

    The first round tries several layers. The second round tries other strengths at the best layer. Each
    setting is scored at every layer after the layer in which contrast changes the attention.

    Args:
        encoder: The language model with its prompt. If the encoder uses token prepending, all settings with
            contrast use it too.
        task: Pairs of sentences with similarity scores.
        layer: 0-based index of the layer in which contrast changes the attention. If None, several layers are
            tried.
        strength: The factor that sets the strength of contrast. If None, several factors are tried, unless
            the rule has no factor.
        rule: The contrast rule.
        progress: Called with the number of settings scored so far and the total number.

    Returns:
        All settings with their scores, and the best setting.
    """
    prepending = encoder.reading.prepending
    chooses_strength = rule.scales and strength is None
    first_strength = DEFAULT_STRENGTH if chooses_strength else strength
    layers = _contrast_layers(encoder) if layer is None else [layer]
    contrasts = [Contrast(contrast_layer, first_strength, rule) for contrast_layer in layers]
    other_strengths: list[float] = []
    if chooses_strength:
        other_strengths = [factor for factor in _STRENGTHS if factor != first_strength]
    # Raises an error for an impossible setting before anything is encoded.
    encoder.reread(replace(encoder.reading, contrast=contrasts[0], layer=-1))

    def with_other_strengths(best: Tried) -> list[_Setting]:
        """Return the settings of the second round: other strengths at the best layer."""
        best_layer = best.contrast_layer or 0  # the best setting uses contrast, so it has a layer
        return [_Setting(prepending, Contrast(best_layer, factor, rule)) for factor in other_strengths]

    without_contrast = [_Setting()]
    if prepending is not None:
        without_contrast.append(_Setting(prepending))
    search = _Search(
        first=[*without_contrast, *(_Setting(prepending, contrast) for contrast in contrasts)],
        is_tuned=lambda tried: tried.contrast_layer is not None,
        refine=with_other_strengths,
        max_refinements=len(other_strengths),
    )
    return _tuned(encoder, task, search, progress)


def _contrast_layers(encoder: CausalPromptEncoder) -> list[int]:
    """Return the layers to try for contrast: at most `_MAX_CONTRAST_LAYERS`, spread evenly.

    Only layers with a projection are tried: those in the first half of the model if there are any, or else
    those in the whole model. If no layer has a projection, only layer 0 is tried.
    """
    possible_layers = layers_with_projection(encoder.prompted.decoder)
    early_layers = [layer for layer in possible_layers if layer <= encoder.layers // 2]
    candidates = early_layers or possible_layers or [0]
    indices = np.linspace(0, len(candidates) - 1, min(_MAX_CONTRAST_LAYERS, len(candidates)))
    return [candidates[round(index)] for index in indices]


def _tuned(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    search: _Search,
    progress: Callable[[int, int], None],
) -> Tuning:
    """Score all settings of a search at every layer, and return all scores with the best settings.

    The settings of the second round refine the best tuned setting of the first round.
    """
    tried: list[Tried] = []
    settings = list(search.first)  # the second round is added when the first is done
    total = len(search.first) + search.max_refinements
    done = 0
    progress(0, total)
    while done < len(settings):
        setting = settings[done]
        tried += layers_scored(encoder, task, setting.prepending, setting.contrast)
        done += 1
        if done == len(search.first):
            best_of_first_round = _best(filter(search.is_tuned, tried), encoder)
            settings += search.refine(best_of_first_round)
        # The second round may have fewer settings than the maximum, so the last step reports the full total.
        progress(done if done < len(settings) else total, total)
    tuned = _best(filter(search.is_tuned, tried), encoder)
    plain_prompts = [trial for trial in tried if trial.is_plain]
    (plain_at_tuned,) = [trial for trial in plain_prompts if trial.layer == tuned.layer]
    return Tuning(
        tried=tuple(tried),
        best=_best(tried, encoder),
        tuned=tuned,
        plain=_best(plain_prompts, encoder),
        plain_at_tuned=plain_at_tuned,
    )


def _best(tried: Iterable[Tried], encoder: CausalPromptEncoder) -> Tried:
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
    """Score one setting in one pass, at every layer from which the vector can be read.

    The plain prompt can be read from every layer. Token prepending has no effect before the first copied
    state is read, and contrast none before the layer that it changes.

    Returns:
        The setting with its score at each layer from which the vector can be read, in ascending order.
    """
    # The encoder is set to read the last layer, because its own layer may precede the one that contrast
    # changes.
    reading = replace(encoder.reading, prepending=prepending, contrast=contrast, layer=-1)
    steered = encoder.reread(reading)
    first_layer = 1
    if prepending is not None:
        first_layer = max(first_layer, prepending.start + 1)
    if contrast is not None:
        first_layer = max(first_layer, contrast.layer + 1)
    layers = range(first_layer, encoder.layers + 1)
    chunks = []
    for start in range(0, task.units, _PAIRS_AT_A_TIME):
        stop = start + _PAIRS_AT_A_TIME
        chunks.append(_cosines_by_layer(steered, task.first[start:stop], task.second[start:stop], layers))
    by_layer = np.concatenate(chunks).T
    scores = 100 * task.scores("spearman", by_layer[:, :, None])
    return [
        Tried(
            layer=layer,
            spearman=None if np.isnan(score) else float(score),
            **steering(prepending, contrast),
        )
        for layer, score in zip(layers, scores, strict=True)
    ]


def _cosines_by_layer(
    encoder: CausalPromptEncoder, first: Sequence[str], second: Sequence[str], layers: Sequence[int]
) -> NDArray[np.float64]:
    vectors = encoder.encode_layers([*first, *second], layers).astype(np.float64)
    left = vectors[: len(first)]
    right = vectors[len(first) :]
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosines: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return cosines
