"""MTEB tasks, by name or as objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError, require_package
from stickytoken.tasks.files import LAYOUTS, load_task
from stickytoken.tasks.metrics import Task, fingerprint

# MTEB names of the tasks of Chen et al. 2025.
PAPER_TASKS = (
    "Banking77Classification",
    "EmotionClassification",
    "MassiveIntentClassification",
    "BiorxivClusteringS2S",
    "MedrxivClusteringS2S",
    "TwentyNewsgroupsClustering",
    "SprintDuplicateQuestions",
    "StackOverflowDupQuestions",
    "SciDocsRR",
    "SciFact",
    "ArguAna",
    "NFCorpus",
    "SICK-R",
    "STS16",
    "STSBenchmark",
    "SummEval",
)
_SHOWN_REASON = 300


class UnreachableTaskError(InputError):
    """The data of an MTEB task cannot be loaded."""


@dataclass(frozen=True)
class MtebTask:
    """An MTEB task. It yields one number per condition, so it has no intervals."""

    task: Any

    layout = "mteb"
    unit = "tasks"
    metrics = ("main_score",)
    columns = metrics
    units = 1

    @property
    def name(self) -> str:
        """Name of the task in MTEB."""
        return str(self.task.metadata.name)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the name, the location and revision of the data, and the version of MTEB."""
        return fingerprint(self.layout, self.name, dict(self.task.metadata.dataset), version("mteb"))

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return the main score of each condition."""
        del metric, sample
        return outcomes[:, 0, 0]


AnyTask: TypeAlias = Task | MtebTask


def find_task(source: str | Path) -> tuple[AnyTask, list[str]]:
    """Load a task from a file or folder of a known layout, or from MTEB by name.

    Returns:
        The task, and notes on what was left out of it.

    Raises:
        InputError: there is no such task, or it cannot be used.
        MissingExtraError: an MTEB task is named, and MTEB is not installed.
    """
    path = Path(source).expanduser()
    if path.exists():
        return load_task(path)
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"there is no task file or folder {str(path)!r}")
    return find_mteb_task(str(source)), []


def find_mteb_task(source: Any) -> MtebTask:
    """Find an MTEB task by name, or wrap an MTEB task object."""
    require_package("mteb", f"{str(source)!r} is not a file or folder; as an MTEB task it", "mteb")
    import mteb
    from mteb.abstasks import AbsTask

    if isinstance(source, AbsTask):
        return MtebTask(source)
    try:
        return MtebTask(mteb.get_task(str(source)))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{str(source)!r} is neither a file or folder nor an MTEB task. Known layouts of files: "
            f"{'; '.join(LAYOUTS)}"
        ) from error


def require_module(encoder: Any) -> Any:
    """Return the SentenceTransformer of an encoder, which MTEB encodes with."""
    model = getattr(encoder, "model", None)
    if model is None:
        raise InputError(
            f"{encoder.name!r} is not a SentenceTransformer, which MTEB tasks need: load the model as one"
        )
    return model


def evaluate(model: Any, task: MtebTask) -> float:
    """Return the main score from `mteb.evaluate`, without MTEB's result cache."""
    import mteb

    options: Any = {"batch_size": 32, "show_progress_bar": False}
    result = mteb.evaluate(
        model, task.task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=options
    )
    score = float(result.task_results[0].get_score())
    return score if math.isfinite(score) else math.nan


def load_data(task: MtebTask) -> None:
    """Load the data of a task if it is not loaded yet."""
    from datasets.exceptions import DatasetsError

    if task.task.data_loaded:
        return
    try:
        task.task.load_data()
    except (OSError, ValueError, RuntimeError, LookupError, ImportError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:_SHOWN_REASON] or type(error).__name__
        raise UnreachableTaskError(
            f"the data of {task.name} cannot be loaded, which needs the network or a cached copy: {reason}"
        ) from error
