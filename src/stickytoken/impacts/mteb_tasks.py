"""Tasks of MTEB, by name or as objects, under every condition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError, require_package
from stickytoken.impacts.carriers import needed_room
from stickytoken.impacts.compute import GroupOutcomes, Stage, TaskOutcomes, run_groups, shard_stage
from stickytoken.impacts.conditions import Condition
from stickytoken.impacts.mteb_encoder import EditingEncoder
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Insertion, Placement
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.measurement.store import ResultFolder
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
    """A task of MTEB whose data cannot be had."""


@dataclass(frozen=True)
class MtebTask:
    """A task of MTEB. It gives one number a condition, so its intervals stay empty.

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
    """A task by its name, or as MTEB gives it.

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


def run_mteb(
    task: MtebTask,
    encoder: IdEncoder,
    settings: ImpactSettings,
    conditions: Sequence[Condition],
    folder: ResultFolder,
    progress: ProgressCallback,
) -> TaskOutcomes:
    """The main score of a task under all conditions.

    Raises:
        UnreachableTaskError: its data cannot be loaded.
    """
    tokens = sorted({token for each in conditions for token in each.tokens}, key=lambda token: token.id)
    room = needed_room(encoder, tokens, settings.copies, Insertion.TEXT)
    counts = {"cut": 0, "texts": 0}

    def outcomes(group: Sequence[Condition]) -> GroupOutcomes:
        load_data(task)
        values: list[NDArray[np.float64]] = []
        scores: dict[int | None, float] = {}
        encoded_texts = 0
        for condition in group:
            # Repetitions that edit texts alike are evaluated once.
            edit = condition.seed if _is_random(condition, settings) else None
            if edit not in scores:
                model = EditingEncoder(encoder, condition, settings, room)
                scores[edit] = evaluate(model, task)
                encoded_texts += model.encoded
                counts.update(cut=model.cut, texts=model.encoded)
            values.append(np.array([[scores[edit]]]))
        return values, encoded_texts

    stage = Stage(shard_stage(task.name), task.name, task.columns, task.units)
    found = run_groups(stage, conditions, outcomes, folder, progress)
    return TaskOutcomes(task, found, edited=counts["texts"], cut=counts["cut"], texts=counts["texts"])


def _is_random(condition: Condition, settings: ImpactSettings) -> bool:
    """Whether a seed changes how a condition edits a text."""
    return condition.mixture or (bool(condition.tokens) and settings.placement is Placement.RANDOM)


def evaluate(model: Any, task: MtebTask) -> float:
    """The main score that `mteb.evaluate` gives; its results are not read from or kept in MTEB's cache."""
    import mteb

    options: Any = {"batch_size": 32, "show_progress_bar": False}
    result = mteb.evaluate(
        model, task.task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=options
    )
    score = float(result.task_results[0].get_score())
    return score if math.isfinite(score) else math.nan


def load_data(task: MtebTask) -> None:
    """Have the data of a task at hand.

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
