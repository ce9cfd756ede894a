"""Choose the layers for token prepending by their score on sentence pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import tasks
from stickytoken.data.metrics import SimilarityTask
from stickytoken.errors import InputError
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.reading import TokenPrepending

# Number of pairs that are encoded at a time; small, because the vectors of all layers are kept in memory.
_PAIRS_AT_A_TIME = 256
# Maximum number of exit layers to try for token prepending.
_MAX_EXITS = 12
# Deepest exit layer to try, as a share of the number of layers.
_EXIT_DEPTH = 2 / 3
# Number of start layers, from layer 0, to try for token prepending with the best exit layer.
_STARTS = 4


def read_similarity(path: Path) -> SimilarityTask:
    """Read a task of sentence pairs with similarity scores.

    Of a table whose column ``split`` names several splits, only the pairs of ``dev`` are taken.

    Raises:
        InputError: The file cannot be used, or it holds a different kind of task.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import read_similarity
        >>> read_similarity(Path("sts.jsonl")).units
        6
    """
    if not path.exists():
        raise InputError(f"there is no task file {str(path)!r}")
    task, _ = tasks.load_task(path, split="dev")
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a {task.layout} task: pass pairs with sentence1, sentence2, score")
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Token prepending or the plain prompt, read at one layer, and its score.

    Attributes:
        start: First layer that token prepending overwrites; None for the plain prompt.
        exit: First layer after ``start`` that token prepending does not overwrite; None for the plain prompt.
        layer: 1-based layer from which the vector is read.
        spearman: Spearman correlation times 100; None if all cosines are equal.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import read_similarity, tune
        >>> tuning = tune(decoder, read_similarity(Path("sts.jsonl")))
        >>> tuning.tried[0].is_plain
        True
    """

    start: int | None = None
    exit: int | None = None
    layer: int
    spearman: float | None

    @property
    def is_plain(self) -> bool:
        """Whether this is the prompt without token prepending."""
        return self.start is None


@dataclass(frozen=True)
class Tuning:
    """All settings that were tried, in order, and the best settings.

    Attributes:
        tried: Every setting at every layer from which the vector can be read, in ascending order of layers
            for each setting. These are the layers that the first copied state of token prepending reaches.
        best: What scored best, at its best layer. This may be the plain prompt.
        tuned: The best token prepending, at its best layer.
        plain: The plain prompt at its best layer.
        plain_at_tuned: The plain prompt at the layer of ``tuned``.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import read_similarity, tune
        >>> tuning = tune(decoder, read_similarity(Path("sts.jsonl")))
        >>> tuning.plain.layer <= decoder.layers
        True
    """

    tried: tuple[Tried, ...]
    best: Tried
    tuned: Tried
    plain: Tried
    plain_at_tuned: Tried


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

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import read_similarity, tune
        >>> tuning = tune(decoder, read_similarity(Path("sts.jsonl")))
        >>> tuning.tuned.is_plain
        False
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
    exits = _choose_exits(first_start, layers)
    other_starts = [layer for layer in range(min(_STARTS, layers)) if layer != first_start]

    # The plain prompt comes first, so that it wins a tie.
    first_round = [None, *(TokenPrepending(first_start, end) for end in exits)]
    total = len(first_round) + len(other_starts)
    tried: list[Tried] = []
    progress(0, total)
    for done, prepending in enumerate(first_round, 1):
        tried += layers_scored(encoder, task, prepending)
        progress(done, total)
    # Token prepending always has an exit; `or layers` is for mypy.
    best_exit = _find_best_prepending(tried, encoder).exit or layers
    second_round = [TokenPrepending(layer, best_exit) for layer in other_starts if layer < best_exit]
    for done, prepending in enumerate(second_round, len(first_round) + 1):
        tried += layers_scored(encoder, task, prepending)
        progress(done, total)
    if len(second_round) < len(other_starts):
        progress(total, total)
    tuned = _find_best_prepending(tried, encoder)
    plain_prompts = [trial for trial in tried if trial.is_plain]
    (plain_at_tuned,) = [trial for trial in plain_prompts if trial.layer == tuned.layer]
    return Tuning(
        tried=tuple(tried),
        best=_find_best(tried, encoder),
        tuned=tuned,
        plain=_find_best(plain_prompts, encoder),
        plain_at_tuned=plain_at_tuned,
    )


def _choose_exits(start: int, layers: int) -> list[int]:
    last_exit = max(start + 1, round(_EXIT_DEPTH * layers))
    count = min(_MAX_EXITS, last_exit - start)  # as many as there are layers, up to the maximum
    return sorted({round(layer) for layer in np.linspace(start + 1, last_exit, count)})


def _find_best_prepending(tried: Iterable[Tried], encoder: CausalPromptEncoder) -> Tried:
    return _find_best([trial for trial in tried if not trial.is_plain], encoder)


def _find_best(tried: Iterable[Tried], encoder: CausalPromptEncoder) -> Tried:
    scored = [(trial.spearman, trial) for trial in tried if trial.spearman is not None]
    if not scored:
        raise InputError(
            f"{encoder.name} gives all pairs the same similarity at every layer: check the task and "
            "the prompt"
        )
    _, best = max(scored, key=itemgetter(0))  # if several have the same score, the first
    return best


def layers_scored(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    prepending: TokenPrepending | None,
) -> list[Tried]:
    """Score one setting in one pass, at every layer from which the vector can be read.

    The plain prompt can be read from every layer. Token prepending has no effect before the first copied
    state is read.

    Returns:
        The setting with its score at each layer from which the vector can be read, in ascending order.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import layers_scored, read_similarity
        >>> [tried.layer for tried in layers_scored(decoder, read_similarity(Path("sts.jsonl")), None)]
        [1, 2, 3, 4]
    """
    # `_compute_cosines` reads all layers, whatever layer is set here. The last layer is set, because the
    # encoder's own layer may come before the start of token prepending, which would raise an error.
    reread = encoder.reread(replace(encoder.reading, prepending=prepending, layer=-1))
    first_layer = 1 if prepending is None else prepending.start + 1
    layers = range(first_layer, encoder.layers + 1)
    chunks = []
    for start in range(0, task.units, _PAIRS_AT_A_TIME):
        stop = start + _PAIRS_AT_A_TIME
        chunks.append(_compute_cosines(reread, task.first[start:stop], task.second[start:stop], layers))
    by_layer = np.concatenate(chunks).T  # cosines, shape (layers, pairs)
    # `scores` takes outcomes of several conditions, here the layers: shape (conditions, units, columns).
    scores = 100 * task.scores("spearman", by_layer[:, :, None])
    return [
        Tried(
            start=None if prepending is None else prepending.start,
            exit=None if prepending is None else prepending.exit,
            layer=layer,
            spearman=None if np.isnan(score) else float(score),
        )
        for layer, score in zip(layers, scores, strict=True)
    ]


def _compute_cosines(
    encoder: CausalPromptEncoder, first: Sequence[str], second: Sequence[str], layers: Sequence[int]
) -> NDArray[np.float64]:
    # Returns the cosine of each pair after each layer, shape (pairs, layers). All texts are encoded at once,
    # so that they fill batches.
    vectors = encoder.encode_layers([*first, *second], layers).astype(np.float64)  # shape (texts, layers, d)
    left = vectors[: len(first)]
    right = vectors[len(first) :]
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosines: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return cosines
