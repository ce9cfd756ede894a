"""Score an encoder on labelled data, and embed files of texts."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from stickytoken.data import tasks
from stickytoken.data.metrics import SimilarityTask
from stickytoken.data.tables import all_texts
from stickytoken.data.tasks import AnyTask, MtebTask, find_task
from stickytoken.encoders.prompted import DEFAULT_STRENGTH, Contrast, ContrastRule
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.model import Reading, TokenPrepending, layers_with_projection
from stickytoken.encoders.protocol import Encoder, require_words
from stickytoken.errors import InputError, ModelError
from stickytoken.impacts.statistics import prepare
from stickytoken.insertion import Insertion
from stickytoken.measurement import write_atomically

__all__ = [
    "Comparison",
    "Score",
    "Tried",
    "Tuning",
    "compare",
    "embed_file",
    "find_task",
    "layers_scored",
    "read_similarity",
    "tune",
    "tune_contrast",
]


def read_similarity(path: Path) -> SimilarityTask:
    """Read pairs of sentences with scores.

    Raises:
        InputError: The file cannot be used, or is a task of another kind.
    """
    task = tasks.load_task(path)[0] if path.exists() else None
    if task is None:
        raise InputError(f"there is no task file {str(path)!r}")
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a {task.layout} task: pass pairs with sentence1, sentence2, score")
    return task


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one way of encoding.

    Attributes:
        encoding: ``as it is``, ``plain prompt``, ``token prepending``, ``contrast`` or both of these,
            separated by a comma.
        start: First layer that is overwritten; None without token prepending.
        exit: First later layer that is not overwritten.
        layer: Layer that is read, from 1; None for a model without a prompt.
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


_SETTINGS = ("start", "exit", "contrast_layer", "contrast_strength", "contrast_rule")


def encodings(encoder: Encoder) -> list[tuple[str, Encoder]]:
    if not isinstance(encoder, CausalPromptEncoder):
        return [("as it is", encoder)]
    reading, span, contrast = encoder.reading, encoder.reading.prepending, encoder.reading.contrast
    plain = replace(reading, prepending=None, contrast=None)
    readings = [("plain prompt", plain)]
    if encoder.prompted.number != encoder.layers:
        readings.insert(0, ("plain prompt", replace(plain, layer=-1)))
    if span is not None:
        readings.append(("token prepending", replace(plain, prepending=span)))
    if contrast is not None:
        readings.append(("contrast", replace(plain, contrast=contrast)))
    if span is not None and contrast is not None:
        readings.append(("token prepending, contrast", reading))
    return [(name, encoder if own == reading else encoder.reread(own)) for name, own in readings]


def compare(encoder: Encoder, task: AnyTask, *, seed: int = 42) -> Comparison:
    """Score an encoder, and its plain prompt at the same layer if it uses token prepending or contrast.

    Args:
        encoder: The model.
        task: A task from `find_task`.
        seed: Seed of random steps, such as the start of a clustering.

    Raises:
        InputError: The data of an MTEB task cannot be loaded.
        EncodingError: The model cannot encode a text.
    """
    cut, texts = 0, dict[str, list[str]]()
    if isinstance(task, MtebTask):
        tasks.load_data(task)
    else:
        # All ways get the same texts; of all, the encoder itself has the longest prompts.
        texts = {role: list(each) for role, each in task.texts.items()}
        # Without its tokenizer, an encoder truncates or refuses long texts itself.
        words = None
        with suppress(ModelError):
            asked = require_words(encoder, "evaluate")
            words = None if getattr(asked.tokenizer, "estimates", False) else asked
        if words is not None:
            for role, each in texts.items():
                carriers = prepare(words, each, 0, Insertion.TEXT, task.name)
                texts[role] = [carrier.text for carrier in carriers]
                cut += sum(carrier.cut for carrier in carriers)
    found = []
    for name, own in encodings(encoder):
        started = time.perf_counter()
        if isinstance(task, MtebTask):
            if isinstance(own, CausalPromptEncoder):
                model = own.sentence_transformer()
            else:
                model = tasks.require_module(own)
            values = {"main_score": tasks.evaluate(model, task)}
        else:
            vectors = {role: own.encode(each) for role, each in texts.items()}
            outcomes = task.outcomes(vectors, seed)[None]
            values = {metric: float(task.scores(metric, outcomes)[0]) for metric in task.metrics}
        scores = {metric: None if math.isnan(value) else 100 * value for metric, value in values.items()}
        seconds = time.perf_counter() - started
        layer, settings = None, _settings(None)
        if isinstance(own, CausalPromptEncoder):
            layer, settings = own.prompted.number, _settings(own.reading)
            if own.reading.prepending is not None:
                settings["exit"] = min(settings["exit"], own.layers)
        found.append(Score(encoding=name, layer=layer, scores=scores, seconds=seconds, **settings))
    return Comparison(found, cut)


def _settings(reading: Reading | None) -> dict[str, Any]:
    options = {} if reading is None else reading.options
    return {key: options.get(key) for key in _SETTINGS}


_CHUNK = 256


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
    """Score settings of token prepending at every layer."""
    if encoder.reading.prompt.echoes:
        raise InputError("an echo prompt has no layers to overwrite: use another prompt")
    layers = encoder.layers
    first = min(1, layers - 1) if start is None else start
    TokenPrepending(first, first + 1)  # refuses a start below 0
    if first >= layers:
        raise InputError(f"start is {first}, but {encoder.name} has {layers} layers: pass 0 to {layers - 1}")
    # Exits to try: the layers up to two thirds of the depth, or evenly spread ones.
    last = max(first + 1, round(2 * layers / 3))
    exits = sorted({round(each) for each in np.linspace(first + 1, last, min(12, last - first))})
    others = [each for each in range(min(4, layers)) if each != first]
    settings: list[Setting] = [(None, None), *((TokenPrepending(first, each), None) for each in exits)]

    def further(best: Tried) -> list[Setting]:
        stop = best.exit or layers
        return [(TokenPrepending(each, stop), None) for each in others if each < stop]

    return _tuned(encoder, task, "start", settings, further, len(settings) + len(others), progress)


Setting: TypeAlias = tuple[TokenPrepending | None, Contrast | None]


def _tuned(
    encoder: CausalPromptEncoder,
    task: SimilarityTask,
    tuned: str,  # an attribute of `Tried` that is None in settings that are only compared with
    settings: Sequence[Setting],
    further: Callable[[Tried], Sequence[Setting]],  # given the best of them
    total: int,
    progress: Callable[[int, int], None],
) -> Tuning:
    tried: list[Tried] = []

    def best(rows: Sequence[Tried]) -> Tried:
        known = [own for own in rows if own.spearman is not None]
        if not known:
            raise InputError(
                f"{encoder.name} gives all pairs the same similarity at every layer: check the task and "
                "the prompt"
            )
        return max(known, key=lambda own: own.spearman or 0.0)

    def best_tuned() -> Tried:
        return best([own for own in tried if getattr(own, tuned) is not None])

    waiting, done = list(settings), 0
    progress(0, total)
    while done < len(waiting):
        tried += layers_scored(encoder, task, *waiting[done])
        done += 1
        if done == len(settings):
            waiting += further(best_tuned())
        progress(done if done < len(waiting) else total, total)
    found, plain = best_tuned(), [own for own in tried if own.start is own.contrast_layer is None]
    return Tuning(tuple(tried), best(plain), found, plain[found.layer - 1])


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
    # Cosines of every pair at every layer, a few pairs at a time.
    parts = []
    for place in range(0, task.units, _CHUNK):
        first, second = task.first[place : place + _CHUNK], task.second[place : place + _CHUNK]
        vectors = own.encode_layers([*first, *second], numbers).astype(np.float64)
        left, right = vectors[: len(first)], vectors[len(first) :]
        norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
        parts.append((left * right).sum(axis=-1) / norms)
    scores = 100 * task.scores("spearman", np.concatenate(parts).T[:, :, None])
    settings = _settings(own.reading)
    return [
        Tried(layer=number, spearman=None if np.isnan(score) else float(score), **settings)
        for number, score in zip(numbers, scores, strict=True)
    ]


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
    span = encoder.reading.prepending
    first = DEFAULT_STRENGTH if strength is None and rule.scales else strength
    layers = [0 if layer is None else layer]
    if layer is None:
        # Those with a projection in the first half, or evenly spread ones.
        possible = layers_with_projection(encoder.prompted.decoder)
        early = [each for each in possible if each <= encoder.layers // 2] or possible or [0]
        places = np.linspace(0, len(early) - 1, min(8, len(early)))
        layers = [early[round(place)] for place in places]
    chosen = [Contrast(each, first, rule) for each in layers]
    others = (
        [each for each in (0.25, 0.5, 1.0, 2.0) if each != first] if rule.scales and strength is None else []
    )
    # Refuse an impossible setting before any pass.
    encoder.reread(replace(encoder.reading, contrast=chosen[0], layer=-1))
    settings: list[Setting] = [(kept, None) for kept in dict.fromkeys((None, span))]
    settings += [(span, contrast) for contrast in chosen]

    def further(best: Tried) -> list[Setting]:
        return [(span, Contrast(best.contrast_layer or 0, factor, rule)) for factor in others]

    return _tuned(encoder, task, "contrast_layer", settings, further, len(settings) + len(others), progress)


_EMBEDDING_CHUNK = 2048


def texts_of_file(path: Path, column: str | None = None) -> list[str]:
    texts, _ = all_texts(path, column)
    for row, text in enumerate(texts, start=1):
        if text is None:
            raise InputError(f"{path}: row {row} has no text")
    return [str(text) for text in texts]


def require_new_file(path: Path) -> None:
    if path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: vectors are written as .parquet")
    if path.exists():
        raise InputError(f"{path} already exists: name another file, or delete it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name} to")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def embed_file(
    encoder: Encoder,
    texts: Sequence[str],
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Encode texts and write one row per text: ``text``, and ``vector`` as an array of float32."""
    require_new_file(path)
    parts = []
    progress(0, len(texts))
    for start in range(0, len(texts), _EMBEDDING_CHUNK):
        parts.append(encoder.encode(texts[start : start + _EMBEDDING_CHUNK]))
        progress(min(start + _EMBEDDING_CHUNK, len(texts)), len(texts))
    vectors = np.concatenate(parts) if parts else np.empty((0, encoder.dimension), np.float32)
    size = int(vectors.shape[1])
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "vector": pl.Series(vectors, dtype=pl.Array(pl.Float32, size)),
        }
    )
    write_atomically(path, frame.write_parquet)
    return size
