"""Score an encoder on tasks, and compare the ways of encoding that it offers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import tasks
from stickytoken.data.metrics import Task
from stickytoken.data.tasks import AnyTask, MtebTask
from stickytoken.encoders.protocol import Encoder, capabilities_of, require_words, similarity_of
from stickytoken.encoders.roles import in_role, prompts_of
from stickytoken.encoders.scoring import encoders_of, score_task, truncate_texts
from stickytoken.errors import ModelError
from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.unit_vectors import Similarity
from stickytoken.vocabulary import CandidateTokenizer

# Number of bootstrap samples. With 1,000 samples, the ends of a 95% interval vary little between seeds.
_RESAMPLES = 1000
_CONFIDENCE = 0.95
# Number of texts per role to encode before the clock starts.
_WARM_UP_TEXTS = 32

_AS_IT_IS = "as it is"
_PLAIN = "plain prompt"

Texts: TypeAlias = Mapping[str, Sequence[str]]
"""The texts of a task, keyed by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of one way of encoding, and the layers that it uses.

    Attributes:
        encoding: ``as it is``, ``plain prompt`` or ``token prepending``.
        start: First layer that token prepending overwrites; None if it is not used.
        exit: First layer after ``start`` that token prepending does not overwrite; None if it is not used.
        layer: 1-based layer from which the vector is read; None for a model without a prompt.
        scores: Scores times 100, keyed by metric; None where a metric is undefined.
        seconds: Time taken to encode the texts and compute the scores, in seconds.

    Examples:
        >>> from stickytoken.evaluation import compare, find_task
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> comparison.scores[0].encoding
        'as it is'
    """

    encoding: str
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    scores: dict[str, float | None]
    seconds: float

    @property
    def main_score(self) -> float | None:
        """The score by the task's first metric, times 100; None if it is undefined."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True, slots=True)
class Difference:
    """How much the main score of a way of encoding differs from the main score of the plain prompt.

    The interval comes from a paired bootstrap.

    Attributes:
        encoding: The way of encoding, as in `Score`.
        layer: The layer, as in `Score`.
        plain_layer: The layer at which the plain prompt is read: the last layer, or the same as ``layer``.
        value: The score of this way of encoding minus the score of the plain prompt, times 100; None if
            either score is undefined.
        low: Lower end of the 95% interval over pairs, queries or texts; None if it is undefined.
        high: Upper end of the same interval.

    Examples:
        >>> from stickytoken.evaluation import Difference
        >>> Difference("token prepending", layer=3, plain_layer=3, value=1.8, low=0.9, high=2.6).low
        0.9
    """

    encoding: str
    layer: int | None
    plain_layer: int | None
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Scores of all ways of encoding on one task.

    Attributes:
        scores: One item per way of encoding.
        cut: Number of texts truncated to fit the model; it is the same for every way of encoding.
        differences: First, each way of encoding compared with the plain prompt at the last layer. Then, if
            the encoder reads another layer, each way with token prepending compared with the plain prompt at
            the same layer. Empty for an MTEB task.
        resamples: Main scores times 100, shape (1 + samples, ways of encoding). The first row is computed
            from all units; each further row from one bootstrap sample. None for an MTEB task.
        similarity: How vectors are compared, as the model declares.
        prompts: The prompts that were put before texts, keyed by the role of the texts in the task; in a task
            without queries, the only key is ``text``. None for an MTEB task, where MTEB chooses the prompts,
            and for a language model, whose prompt surrounds every text.

    Examples:
        >>> from stickytoken.evaluation import compare, find_task
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> comparison.differences
        []
    """

    scores: list[Score] = field(default_factory=list)
    cut: int = 0
    differences: list[Difference] = field(default_factory=list)
    resamples: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    similarity: Similarity = Similarity.COSINE
    prompts: dict[str, str] | None = None


@dataclass(frozen=True)
class _Encoding:
    """A way of encoding: its name, and an encoder that encodes in this way.

    Ways of encoding differ in the layer from which the vector is read, and in the use of token prepending.
    """

    name: str
    encoder: Encoder

    def score(self, scores: Mapping[str, float], seconds: float) -> Score:
        # Returns the scores, with NaN replaced by None, and the layers that this way of encoding uses.
        percentages = {metric: None if math.isnan(score) else 100 * score for metric, score in scores.items()}
        encoder = self.encoder
        if not isinstance(encoder, CausalPromptEncoder):
            return Score(encoding=self.name, scores=percentages, seconds=seconds)
        prepending = encoder.reading.prepending
        layer = encoder.prompted.layers_run  # the layer from which the vector is read
        return Score(
            encoding=self.name,
            start=None if prepending is None else prepending.start,
            exit=None if prepending is None else min(prepending.exit, layer),  # later layers have no effect
            layer=layer,
            scores=percentages,
            seconds=seconds,
        )


def _list_encodings(encoder: Encoder) -> list[_Encoding]:
    """Return the ways of encoding to compare: configurations of the encoder.

    For a language model with a prompt, the configurations include the plain prompt, read at the last layer
    and at the encoder's own layer, and token prepending if the encoder uses it. An encoder that is not a
    language model with a prompt has only one configuration.
    """
    if not isinstance(encoder, CausalPromptEncoder):
        return [_Encoding(_AS_IT_IS, encoder)]
    # A `Reading` consists of a prompt, the layer from which vectors are read, and token prepending.
    own_reading = encoder.reading
    plain = replace(own_reading, prepending=None)
    readings = []
    reads_last_layer = encoder.prompted.layers_run == encoder.layers
    if not reads_last_layer:
        readings.append((_PLAIN, replace(plain, layer=-1)))
    readings.append((_PLAIN, plain))
    if own_reading.prepending is not None:
        readings.append(("token prepending", own_reading))
    encodings = []
    for name, reading in readings:
        encoder_of_reading = encoder if reading == own_reading else encoder.reread(reading)
        encodings.append(_Encoding(name, encoder_of_reading))
    return encodings


def compare(encoder: Encoder, task: AnyTask, *, seed: int = 42) -> Comparison:
    """Score all ways of encoding that an encoder offers on a task, and compare them with the plain prompt.

    Args:
        encoder: The encoder.
        task: A task from `find_task`.
        seed: Seed for the bootstrap and for other random steps, such as the division into folds.

    Returns:
        The scores of all ways of encoding, and the differences between them.

    Raises:
        InputError: The data of an MTEB task cannot be loaded.
        EncodingError: The model cannot encode a text.

    Examples:
        >>> from stickytoken.evaluation import compare, find_task
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> [(score.encoding, sorted(score.scores)) for score in comparison.scores]
        [('as it is', ['pearson', 'spearman'])]
    """
    if isinstance(task, MtebTask):
        tasks.load_data(task)
        scores = [_score_mteb(encoding, task) for encoding in _list_encodings(encoder)]
        return Comparison(scores, similarity=similarity_of(encoder))
    texts, truncated_count = _truncate_texts(encoder, task)
    scores = []
    outcomes = []  # of each way of encoding, shape (units, columns)
    for encoding in _list_encodings(encoder):
        score, encoding_outcomes = _score(encoding, task, texts, seed)
        scores.append(score)
        outcomes.append(encoding_outcomes)
    resamples = _resample_main_scores(task, np.stack(outcomes), seed)
    differences = _compute_differences(scores, resamples)
    prompts: dict[str, str] | None
    if isinstance(encoder, CausalPromptEncoder):  # its prompt surrounds every text
        prompts = None
    elif task.has_queries:
        prompts = prompts_of(encoder)
    else:
        prompts = {"text": capabilities_of(in_role(encoder, None)).prompt}
    return Comparison(scores, truncated_count, differences, resamples, similarity_of(encoder), prompts)


def _score_mteb(encoding: _Encoding, task: MtebTask) -> Score:
    started = time.perf_counter()
    # MTEB evaluates a SentenceTransformer.
    if isinstance(encoding.encoder, CausalPromptEncoder):
        model = encoding.encoder.sentence_transformer()
    else:
        model = tasks.require_module(encoding.encoder)
    score = tasks.evaluate(model, task)
    return encoding.score({"main_score": score}, time.perf_counter() - started)


def _score(encoding: _Encoding, task: Task, texts: Texts, seed: int) -> tuple[Score, NDArray[np.float64]]:
    # Returns the scores of a way of encoding, and the outcomes that they are computed from, shape (units,
    # columns).
    encoders = encoders_of(encoding.encoder, task)
    # Encode a few texts before the clock starts, because kernels are built and shortcuts are tested only
    # once.
    for role, role_texts in texts.items():
        encoders[role].encode(role_texts[:_WARM_UP_TEXTS])
    started = time.perf_counter()
    scores, outcomes = score_task(task, encoders, texts, seed)
    return encoding.score(scores, time.perf_counter() - started), outcomes


def _resample_main_scores(task: Task, outcomes: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    # The task is part of the key of the random draws, so that different tasks are resampled independently.
    key = [seed, int(task.fingerprint[:8], 16)]
    samples = bootstrap_samples(task.units, _RESAMPLES, key)
    main_metric = task.metrics[0]
    # Shape (1 + samples, ways of encoding); the first row has the scores on all units.
    return 100 * resampled(lambda sample: task.scores(main_metric, outcomes, sample), samples)


def _truncate_texts(encoder: Encoder, task: Task) -> tuple[dict[str, list[str]], int]:
    # Returns the texts, truncated for the encoder and keyed by role, and the number of truncated texts. All
    # ways of encoding get the same texts: a text that fits the given encoder also fits the other ways of
    # encoding, because these only leave out token prepending, which adds a token to each prompt.
    whole_texts = {role: list(role_texts) for role, role_texts in task.texts.items()}
    try:
        word_encoder = require_words(encoder, "evaluate")  # raises an error if the encoder has no tokenizer
        only_estimates = isinstance(word_encoder.tokenizer, CandidateTokenizer)
    except ModelError:  # an encoder without a tokenizer truncates or rejects long texts itself
        return whole_texts, 0
    if only_estimates:  # the tokenizer is not published, so token counts are not exact
        return whole_texts, 0
    return truncate_texts(word_encoder, task)


def _compute_differences(scores: Sequence[Score], resamples: NDArray[np.float64]) -> list[Difference]:
    """Return how the ways of encoding differ from the plain prompt; see `Comparison`."""
    if len(scores) == 1:
        return []
    # `_list_encodings` lists the plain prompt at the last layer first, and at the encoder's layer second.
    compared = [(index, 0) for index in range(1, len(scores))]
    if scores[1].encoding == _PLAIN:
        compared += [(index, 1) for index in range(2, len(scores))]
    # A row has 1 in the column of a way of encoding, and -1 in the column of the plain prompt that it is
    # compared with.
    contrasts = np.zeros((len(compared), len(scores)))
    for row, (index, plain_index) in enumerate(compared):
        contrasts[row, index] = 1
        contrasts[row, plain_index] = -1
    intervals = contrast_intervals(resamples, contrasts, _CONFIDENCE)
    return [
        Difference(
            encoding=scores[index].encoding,
            layer=scores[index].layer,
            plain_layer=scores[plain_index].layer,
            value=interval.value,
            low=interval.low,
            high=interval.high,
        )
        for (index, plain_index), interval in zip(compared, intervals, strict=True)
    ]


@dataclass(frozen=True)
class TaskMean:
    """Main scores, averaged over several tasks.

    Attributes:
        encodings: Name and layer of each way of encoding.
        scores: For each way of encoding, the mean of its main scores, times 100; None if the score on any
            task is undefined.
        differences: Differences between the means, as in `Comparison`; empty if any task is an MTEB task.

    Examples:
        >>> from stickytoken.evaluation import average, compare, find_task
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> average([comparison, comparison]).differences
        []
    """

    encodings: list[tuple[str, int | None]]
    scores: list[float | None]
    differences: list[Difference]


def average(comparisons: Sequence[Comparison]) -> TaskMean:
    """Average the main scores over several tasks. All comparisons must be of the same encoder.

    Examples:
        >>> from stickytoken.evaluation import average, compare, find_task
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> average([comparison, comparison]).encodings
        [('as it is', None)]
    """
    first_scores = comparisons[0].scores
    # For each way of encoding, its scores on all tasks.
    scores_by_encoding = zip(*(comparison.scores for comparison in comparisons), strict=True)
    means = [_average_if_all_defined([score.main_score for score in scores]) for scores in scores_by_encoding]
    resamples = [comparison.resamples for comparison in comparisons if comparison.resamples is not None]
    differences: list[Difference] = []
    has_mteb_task = len(resamples) < len(comparisons)
    if not has_mteb_task:
        # `resamples` have one row for all units and one for each bootstrap sample, and are averaged over
        # tasks row by row. The tasks were resampled independently of each other.
        differences = _compute_differences(first_scores, np.mean(resamples, axis=0))
    return TaskMean([(score.encoding, score.layer) for score in first_scores], means, differences)


def _average_if_all_defined(scores: Sequence[float | None]) -> float | None:
    defined = [score for score in scores if score is not None]
    return sum(defined) / len(defined) if len(defined) == len(scores) else None


def guess_note(comparison: Comparison | TaskMean) -> str | None:
    """Return a note if the plain prompt scores worse at the encoder's layer than after the last layer.

    Without tuning, the layer from which vectors are read is a guess. The note recommends how to choose it.
    The result is None if the prompt scores no worse at the encoder's layer than after the last layer, or if
    the difference may be due to chance.

    Examples:
        >>> from stickytoken.evaluation import compare, find_task, guess_note
        >>> comparison = compare(model, find_task("sts.jsonl")[0])
        >>> guess_note(comparison) is None
        True
    """
    if not comparison.differences:
        return None
    # If the encoder does not read the last layer, the first difference compares plain prompts: the score at
    # the encoder's layer minus the score after the last layer.
    own_minus_last = comparison.differences[0]
    is_worse = own_minus_last.high is not None and own_minus_last.high < 0
    if own_minus_last.encoding != _PLAIN or not is_worse:
        return None
    interval = f"interval {own_minus_last.low:.2f} to {own_minus_last.high:.2f}"
    return (
        f"the plain prompt scores worse at layer {own_minus_last.layer} than after the last layer "
        f"({own_minus_last.value:.2f}, {interval}): read the last layer with --set layer=-1, or choose a "
        "layer with `stickytoken tune`"
    )
