"""Tasks to score a model on: a user's files, or MTEB's; the readers are those of the measurement of impact.

Nothing else in this part imports that one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import InputError
from stickytoken.impacts.carriers import prepare
from stickytoken.insertion import Insertion
from stickytoken.tasks.files import load_task
from stickytoken.tasks.mteb import MtebTask, evaluate, find_mteb_task, load_data
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

AnyTask: TypeAlias = Task | MtebTask


def find_task(source: str | Path) -> tuple[AnyTask, list[str]]:
    """A task from a file or folder of a known layout, or from MTEB by its name.

    Returns:
        The task, and notes on what was left out of it.

    Raises:
        InputError: there is none, or it cannot be used.
        MissingExtraError: a name, and MTEB is not installed.
    """
    path = Path(source).expanduser()
    if path.exists():
        return load_task(path)
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"no task file or folder {str(path)!r}")
    return find_mteb_task(str(source)), []


def read_similarity(path: Path) -> SimilarityTask:
    """Pairs of sentences with scores.

    Raises:
        InputError: the file cannot be used, or is a task of another kind.
    """
    task = load_task(path)[0] if path.exists() else None
    if task is None:
        raise InputError(f"no task file {str(path)!r}")
    if not isinstance(task, SimilarityTask):
        raise InputError(f"{path} is a task of {task.layout}: pass pairs with sentence1, sentence2, score")
    return task


def fitting_texts(encoder: Encoder, task: Task) -> tuple[dict[str, list[str]], int]:
    """A task's texts by role, cut behind a word where the model does not read them whole.

    Returns:
        The texts, and how many were cut.
    """
    if not reads_ids(encoder):  # one that encodes texts only cuts them itself, or refuses them
        return {role: list(texts) for role, texts in task.texts.items()}, 0
    found = {
        role: prepare(encoder, texts, 0, Insertion.TEXT, task.name) for role, texts in task.texts.items()
    }
    cut = sum(each.cut for carriers in found.values() for each in carriers)
    return {role: [each.text for each in carriers] for role, carriers in found.items()}, cut


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each vector with its partner over the last axis."""
    left, right = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    found: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return found


def scores_of(task: Task, vectors: dict[str, NDArray[np.float32]], seed: int) -> dict[str, float]:
    """All metrics of a task; NaN where one is not defined."""
    outcomes = task.outcomes(vectors, seed)[None]
    return {metric: float(task.scores(metric, outcomes)[0]) for metric in task.metrics}


def mteb_score(model: Any, task: MtebTask) -> dict[str, float]:
    """The main score of a SentenceTransformer on a task of MTEB.

    Raises:
        InputError: its data cannot be loaded.
    """
    load_data(task)
    return {"main_score": evaluate(model, task)}
