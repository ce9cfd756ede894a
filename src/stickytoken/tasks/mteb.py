"""Tasks of MTEB, by name or as objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError, require_package
from stickytoken.tasks.files import LAYOUTS
from stickytoken.tasks.protocol import fingerprint

# The tasks of Chen et al. 2025, by MTEB's names.
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
    """A task of MTEB whose data cannot be loaded."""


@dataclass(frozen=True)
class MtebTask:
    """A task of MTEB. It gives one number per condition, so its intervals stay empty.

    Attributes:
        task: MTEB's own object.
    """

    task: Any

    layout = "mteb"
    unit = "tasks"
    metrics = ("main_score",)
    columns = metrics
    units = 1

    @property
    def name(self) -> str:
        """MTEB's name."""
        return str(self.task.metadata.name)

    @property
    def fingerprint(self) -> str:
        """sha256 over the name, the data's place and revision, and MTEB's version."""
        return fingerprint(self.layout, self.name, dict(self.task.metadata.dataset), version("mteb"))

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """The main score of each condition."""
        del metric, sample
        return outcomes[:, 0, 0]


def find_mteb_task(source: Any) -> MtebTask:
    """Find a task by its name, or take one that MTEB gave.

    Raises:
        MissingExtraError: MTEB is not installed.
        InputError: there is no such task.
    """
    require_package("mteb", f"{str(source)!r} is not a file or folder; as an MTEB task it", "mteb")
    import mteb
    from mteb.abstasks import AbsTask

    if isinstance(source, AbsTask):
        return MtebTask(source)
    try:
        return MtebTask(mteb.get_task(str(source)))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{str(source)!r} is neither a file or folder nor a task of MTEB. Layouts of files are: "
            f"{'; '.join(LAYOUTS)}"
        ) from error


def evaluate(model: Any, task: MtebTask) -> float:
    """Return the main score that `mteb.evaluate` gives, without MTEB's cache of results."""
    import mteb

    options: Any = {"batch_size": 32, "show_progress_bar": False}
    result = mteb.evaluate(
        model, task.task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=options
    )
    score = float(result.task_results[0].get_score())
    return score if math.isfinite(score) else math.nan


def load_data(task: MtebTask) -> None:
    """Load the data of a task, unless it is there.

    Raises:
        UnreachableTaskError: it cannot be loaded.
    """
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
