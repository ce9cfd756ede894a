"""Load the tasks to score a model on, from files or from MTEB, and fit their texts to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, WordEncoder, require_words
from stickytoken.errors import InputError, ModelError
from stickytoken.impacts.carriers import prepare
from stickytoken.insertion import Insertion
from stickytoken.tasks.files import load_task
from stickytoken.tasks.mteb import AnyTask, MtebTask, evaluate, find_task, load_data
from stickytoken.tasks.pairs import SimilarityTask
from stickytoken.tasks.protocol import Task

__all__ = [
    "AnyTask",
    "MtebTask",
    "SimilarityTask",
    "cosines",
    "find_task",
    "fitting_texts",
    "mteb_score",
    "read_similarity",
    "scores_of",
]


def read_similarity(path: Path) -> SimilarityTask:
    """Read pairs of sentences with scores.

    Raises:
        InputError: The file cannot be used, or is a task of another kind.
    """
    task = load_task(path)[0] if path.exists() else None
    if task is None:
        raise InputError(f"there is no task file {str(path)!r}")
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a {task.layout} task: pass pairs with sentence1, sentence2, score")
    return task


def fitting_texts(encoder: Encoder, task: Task) -> tuple[dict[str, list[str]], int]:
    """Return the texts of a task by role, truncated after a word if the model cannot read them in full.

    Returns:
        The texts, and the number of truncated ones.
    """
    words = _counting_tokens(encoder)
    if words is None:  # such an encoder truncates or refuses long texts itself
        return {role: list(texts) for role, texts in task.texts.items()}, 0
    found = {role: prepare(words, texts, 0, Insertion.TEXT, task.name) for role, texts in task.texts.items()}
    cut = sum(each.cut for carriers in found.values() for each in carriers)
    return {role: [each.text for each in carriers] for role, carriers in found.items()}, cut


def _counting_tokens(encoder: Encoder) -> WordEncoder | None:
    """Return an encoder that counts the tokens of texts; None without its tokenizer."""
    try:
        words = require_words(encoder, "evaluate")
        return None if getattr(words.tokenizer, "estimates", False) else words
    except ModelError:
        return None


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine of each vector with its partner, over the last axis."""
    left, right = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    found: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return found


def scores_of(task: Task, vectors: dict[str, NDArray[np.float32]], seed: int) -> dict[str, float]:
    """Return all metrics of a task; NaN where a metric is undefined."""
    outcomes = task.outcomes(vectors, seed)[None]
    return {metric: float(task.scores(metric, outcomes)[0]) for metric in task.metrics}


def mteb_score(model: Any, task: MtebTask) -> dict[str, float]:
    """Return the main score of a SentenceTransformer on an MTEB task."""
    load_data(task)
    return {"main_score": evaluate(model, task)}
