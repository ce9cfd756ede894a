"""Score an encoder on labelled data, and embed files of texts."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import tasks
from stickytoken.data.metrics import SimilarityTask, Task
from stickytoken.data.tables import all_texts
from stickytoken.data.tasks import AnyTask, MtebTask, find_task
from stickytoken.encoders.prompted import DEFAULT_STRENGTH, Contrast, ContrastRule, TokenPrepending
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.steering import layers_with_projection
from stickytoken.encoders.protocol import Encoder, require_usable, require_words, shown, similarity_of
from stickytoken.errors import InputError, ModelError
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, prepare, resampled
from stickytoken.insertion import Insertion
from stickytoken.measurement import write_atomically
from stickytoken.unit_vectors import Similarity
from stickytoken.vocabulary import CandidateTokenizer

__all__ = [
    "Comparison",
    "Difference",
    "EmbeddedFile",
    "Score",
    "TaskMean",
    "Tried",
    "Tuning",
    "average",
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


@dataclass(frozen=True, slots=True)
class Difference:
    """The main score of a way of encoding minus that of the first way, with a paired bootstrap interval.

    Attributes:
        encoding: As in `Score`.
        layer: As in `Score`.
        value: Difference of the scores times 100; None where one of them is undefined.
        low: Low end of the 95% interval over pairs, queries or texts; None without one.
        high: High end.
    """

    encoding: str
    layer: int | None
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Scores of a task.

    Attributes:
        scores: One item per way of encoding; the first metric is the main one.
        cut: Number of texts truncated to fit the model, the same for every way of encoding.
        differences: One item per way of encoding but the first; none for a task of MTEB.
        resamples: Main scores on all units, and on each bootstrap sample of them, of every way of encoding;
            None for a task of MTEB.
        similarity: How vectors are compared: as the model declares.
    """

    scores: list[Score] = field(default_factory=list)
    cut: int = 0
    differences: list[Difference] = field(default_factory=list)
    resamples: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    similarity: Similarity = Similarity.COSINE


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
        seed: Seed of random steps, such as the start of a clustering, and of the bootstrap.

    Raises:
        InputError: The data of an MTEB task cannot be loaded.
        EncodingError: The model cannot encode a text.
    """
    texts: dict[str, list[str]] = {}
    cut = 0
    if isinstance(task, MtebTask):
        tasks.load_data(task)
    else:
        texts, cut = _fitting_texts(encoder, task)
    scores: list[Score] = []
    outcomes = []
    for name, own in encodings(encoder):
        if isinstance(task, MtebTask):
            started = time.perf_counter()
            model = own.sentence_transformer() if isinstance(own, CausalPromptEncoder) else None
            values = {"main_score": tasks.evaluate(model or tasks.require_module(own), task)}
        else:
            # The first texts are encoded once before: kernels are built, and shortcuts are tested.
            own.encode([text for each in texts.values() for text in each[:_WARM_UP]])
            started = time.perf_counter()
            vectors = {role: own.encode(each) for role, each in texts.items()}
            outcomes.append(task.outcomes(vectors, seed, similarity_of(own)))
            values = {metric: float(task.scores(metric, outcomes[-1][None])[0]) for metric in task.metrics}
        seconds = time.perf_counter() - started
        percent = {metric: None if math.isnan(value) else 100 * value for metric, value in values.items()}
        scores.append(_score(name, own, percent, seconds))
    if isinstance(task, MtebTask):
        return Comparison(scores, cut, similarity=similarity_of(encoder))
    # Tasks are resampled independently of each other.
    samples = bootstrap_samples(task.units, _RESAMPLES, [seed, int(task.fingerprint[:8], 16)])
    stacked = np.stack(outcomes)
    drawn = 100 * resampled(lambda sample: task.scores(task.metrics[0], stacked, sample), samples)
    return Comparison(scores, cut, _differences(scores, drawn), drawn, similarity_of(encoder))


# Enough for 95% intervals whose ends vary little.
_RESAMPLES = 1000
_CONFIDENCE = 0.95
_WARM_UP = 32


def _fitting_texts(encoder: Encoder, task: Task) -> tuple[dict[str, list[str]], int]:
    """Return the texts of a task by role, cut to what the model reads, and how many were cut."""
    # All ways of encoding get the same texts; of all, the encoder itself has the longest prompts.
    texts = {role: list(each) for role, each in task.texts.items()}
    try:
        words = require_words(encoder, "evaluate")
        is_estimate = isinstance(words.tokenizer, CandidateTokenizer)
    except ModelError:  # without its tokenizer, an encoder truncates or refuses long texts itself
        return texts, 0
    if is_estimate:
        return texts, 0
    cut = 0
    for role, each in texts.items():
        carriers = prepare(words, each, 0, Insertion.TEXT, task.name)
        texts[role] = [carrier.text for carrier in carriers]
        cut += sum(carrier.cut for carrier in carriers)
    return texts, cut


def _score(name: str, encoder: Encoder, scores: dict[str, float | None], seconds: float) -> Score:
    if not isinstance(encoder, CausalPromptEncoder):
        return Score(encoding=name, layer=None, scores=scores, seconds=seconds, **_settings(None))
    settings = _settings(encoder.reading)
    if encoder.reading.prepending is not None:
        settings["exit"] = min(settings["exit"], encoder.layers)
    return Score(encoding=name, layer=encoder.prompted.number, scores=scores, seconds=seconds, **settings)


def _differences(scores: Sequence[Score], resamples: NDArray[np.float64]) -> list[Difference]:
    """Compare every way of encoding with the first, given main scores of shape (samples, ways)."""
    contrasts = np.eye(len(scores))[1:]
    contrasts[:, 0] = -1
    if not len(contrasts):
        return []
    intervals = contrast_intervals(resamples, contrasts, _CONFIDENCE)
    return [
        Difference(score.encoding, score.layer, interval.value, interval.low, interval.high)
        for score, interval in zip(scores[1:], intervals, strict=True)
    ]


@dataclass(frozen=True)
class TaskMean:
    """Main scores of several tasks, averaged.

    Attributes:
        encodings: Name and layer of each way of encoding.
        scores: Mean main score times 100 of each; None where one is undefined.
        differences: Of the means, as in `Comparison`; none if one of the tasks is of MTEB.
    """

    encodings: list[tuple[str, int | None]]
    scores: list[float | None]
    differences: list[Difference]


def average(comparisons: Sequence[Comparison]) -> TaskMean:
    """Average the main scores of several tasks, which were compared with the same encoder."""
    ways = comparisons[0].scores
    means: list[float | None] = []
    for place in range(len(ways)):
        main = [next(iter(comparison.scores[place].scores.values())) for comparison in comparisons]
        known = [value for value in main if value is not None]
        means.append(sum(known) / len(known) if len(known) == len(main) else None)
    resamples = [comparison.resamples for comparison in comparisons if comparison.resamples is not None]
    differences: list[Difference] = []
    if len(resamples) == len(comparisons):
        # The tasks are fixed, and their units are drawn independently.
        differences = _differences(ways, np.mean(resamples, axis=0))
    return TaskMean([(way.encoding, way.layer) for way in ways], means, differences)


def guess_note(comparison: Comparison | TaskMean) -> str | None:
    """Say so if the plain prompt at a guessed layer scores worse than after the last layer."""
    for difference in comparison.differences[:1]:
        is_worse = difference.high is not None and difference.high < 0
        if difference.encoding == "plain prompt" and is_worse:
            return (
                f"the plain prompt scores worse at layer {difference.layer} than after the last layer "
                f"({difference.value:.2f}, interval {difference.low:.2f} to {difference.high:.2f}): read "
                "the last layer with --set layer=-1, or choose a layer with `stickytoken tune`"
            )
    return None


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


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """What `embed_file` wrote.

    Attributes:
        dimension: number of components of a vector.
        without_vector: texts for which a server gave no vector; their vector is null.
    """

    dimension: int
    without_vector: tuple[str, ...]


def embed_file(
    encoder: Encoder,
    texts: Sequence[str],
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EmbeddedFile:
    """Encode texts and write one row per text: ``text``, and ``vector`` as an array of float32.

    Raises:
        EncodingError: a text has no usable vector, unless a server gives none: then it is null.
        InputError: the file exists or cannot be written.
    """
    require_new_file(path)
    parts = [np.empty((0, encoder.dimension), np.float32)]
    progress(0, len(texts))
    for start in range(0, len(texts), _EMBEDDING_CHUNK):
        chunk = texts[start : start + _EMBEDDING_CHUNK]
        vectors = encoder.encode(chunk, allow_zero=True)
        _require_answers(encoder, chunk, vectors)
        parts.append(vectors)
        progress(start + len(chunk), len(texts))
    all_vectors = np.concatenate(parts)
    is_missing = np.isnan(all_vectors).any(axis=1)
    size = int(all_vectors.shape[1])
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "vector": pl.Series(all_vectors, dtype=pl.Array(pl.Float32, size)),
            "missing": is_missing,
        }
    )
    frame = frame.select("text", pl.when(~pl.col("missing")).then("vector").alias("vector"))
    write_atomically(path, frame.write_parquet)
    without_vector = tuple(texts[place] for place in np.flatnonzero(is_missing).tolist())
    return EmbeddedFile(size, without_vector)


def _require_answers(encoder: Encoder, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
    """Refuse a vector of zeros; one of NaN is a text for which a server gave no vector."""
    answered = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
    require_usable(vectors[answered], encoder.name, lambda row: shown(texts[answered[row]]), allow_zero=False)
