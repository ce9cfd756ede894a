"""The records of impact measurements, and how to open finished measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.measurement import ResultFolder, resume
from stickytoken.settings.impact import ImpactSettings
from stickytoken.validation import file_path

IMPACT_SCHEMA_VERSION = 4
# Kind of a token that the user named but that no run calls sticky.
NAMED = "named"


class TokenRecord(resume.Record):
    """A measured token, or a benign token that is matched to a measured token."""

    token_id: int
    token: str  # vocabulary string
    text: str  # decoded text
    kind: str  # sticky if a run calls it sticky; otherwise named if it is measured, benign if it is a match
    matched_to: int | None  # id of the sticky token that a benign token is compared with


class TaskRecord(resume.Record):
    """A task that was run."""

    name: str
    layout: str
    unit: str  # what the bootstrap resamples, such as queries
    units: int
    texts: int  # total number of texts in the task
    edited: int  # number of texts that get copies
    cut: int  # number of texts truncated to make room for copies, in every condition
    metrics: list[str]  # the main metric comes first


class PairedTestRecord(resume.Record):
    """Tests over tasks of whether sticky tokens lower the main scores more than benign tokens do."""

    tasks: int
    difference: float  # mean over tasks of the score with benign tokens minus the score with sticky tokens
    t: float  # statistic of the paired t-test of Chen et al. (2025)
    p_value: float  # one-sided p-value of the t-test
    cohens_d: float  # mean of the differences, divided by their standard deviation
    permutation_p: float  # one-sided p-value of the permutation test that exchanges the two scores of a task


class ImpactResultRecord(resume.Record):
    """The computing cost of a finished measurement, and the tasks that were run."""

    sequences: int  # number of texts encoded
    seconds: float  # wall time of all sessions
    failed: dict[str, str]  # tasks that could not be run, and why
    tasks: list[TaskRecord]
    paired_test: PairedTestRecord | None = None  # with the edits of the paper, if there are several tasks


class ImpactRecord(resume.MeasurementRecord):
    """impact.json."""

    schema_version: int = IMPACT_SCHEMA_VERSION
    model: str
    device: str
    settings: dict[str, Any]
    tokens: list[TokenRecord]
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: ImpactResultRecord | None = None

    def measured_with(self) -> ImpactSettings:
        """Return the settings of the measurement."""
        # Settings that this version no longer has are left out.
        field_names = ImpactSettings.__dataclass_fields__
        return ImpactSettings(**{name: value for name, value in self.settings.items() if name in field_names})


def measured_kind(record: ImpactRecord) -> str:
    """Return the word that describes the measured tokens in sentences: ``sticky`` or ``named``.

    The word is ``named`` if the user named at least one token that no run calls sticky.
    """
    return NAMED if any(token.kind == NAMED for token in record.tokens) else "sticky"


IMPACT_FILE = "impact.json"
# Name prefix of the folders that hold impact measurements.
IMPACT = "impact"
# Columns of each table, with declared types, so that empty tables have the same types.
TABLES: dict[str, dict[str, Any]] = {
    "effects.parquet": {
        "task": pl.String,
        "layout": pl.String,
        "metric": pl.String,
        "main": pl.Boolean,
        "unit": pl.String,
        "units": pl.Int64,
        "clean": pl.Float64,
        "sticky": pl.Float64,
        "benign": pl.Float64,
        "drop_sticky": pl.Float64,
        "drop_sticky_low": pl.Float64,
        "drop_sticky_high": pl.Float64,
        "drop_benign": pl.Float64,
        "drop_benign_low": pl.Float64,
        "drop_benign_high": pl.Float64,
        "difference": pl.Float64,
        "difference_low": pl.Float64,
        "difference_high": pl.Float64,
        "drop_sticky_relative": pl.Float64,
        "drop_benign_relative": pl.Float64,
        "tokens": pl.Int64,
        "benign_tokens": pl.Int64,
        "effect_size": pl.Float64,
        "p_value": pl.Float64,
        "q_value": pl.Float64,
    },
    "conditions.parquet": {
        "task": pl.String,
        "metric": pl.String,
        "kind": pl.String,
        "token_id": pl.Int64,
        "token": pl.String,
        "score": pl.Float64,
        "drop": pl.Float64,
        "drop_low": pl.Float64,
        "drop_high": pl.Float64,
    },
    "scores.parquet": {
        "task": pl.String,
        "metric": pl.String,
        "kind": pl.String,
        "token_id": pl.Int64,
        "token": pl.String,
        "repetition": pl.Int64,
        "score": pl.Float64,
    },
}
# Columns in which a table must not have nulls.
_WITHOUT_NULLS = (
    "task", "layout", "metric", "main", "kind", "unit", "units", "tokens", "benign_tokens", "repetition",
)  # fmt: skip


def _is_finished(record: ImpactRecord, folder: ResultFolder) -> bool:
    if record.result is None or record.result.failed:  # failed tasks are tried again
        return False
    return all((folder.path / name).is_file() for name in TABLES)


IMPACTS = resume.MeasurementKind(
    "impact",
    IMPACT_FILE,
    lambda folder: folder.read_record(IMPACT_FILE, ImpactRecord, IMPACT_SCHEMA_VERSION, "impact"),
    _is_finished,
)


class Impact:
    """The results of a finished impact measurement.

    Args:
        path: folder of the measurement.

    Attributes:
        effects: one row per task and metric: the drops in score that sticky and benign tokens cause, their
            difference, and the test of the difference.
        conditions: one row per task, metric and condition: the score, and its drop from the score on clean
            texts, with the interval of the drop.
        scores: one row per task, metric, condition and repetition.
        failed: tasks that could not be run, and why.

    Raises:
        RunError: the folder holds no impact measurement, or one that is damaged or not finished.

    Examples:
        >>> settings = stickytoken.ImpactSettings(benign=2)
        >>> impact = stickytoken.impact(model, "sts.jsonl", tokens=["[CLS]"], settings=settings, out="impact")
        >>> impact.failed
        {}
    """

    def __init__(self, path: Path) -> None:
        folder = ResultFolder(path)
        self.path = path
        self.record = resume.read_present(folder, IMPACTS, "impact measurement")
        self.result = resume.require_result(self.record.result, folder, "impact measurement")
        self.failed = self.result.failed
        self.effects = self._read(folder, "effects.parquet")
        self.conditions = self._read(folder, "conditions.parquet")
        self.scores = self._read(folder, "scores.parquet")

    def _read(self, folder: ResultFolder, name: str) -> pl.DataFrame:
        columns = TABLES[name]
        return folder.read_table(name, columns, filled=_WITHOUT_NULLS).select(list(columns))

    def __repr__(self) -> str:
        tokens = sum(token.kind != "benign" for token in self.record.tokens)
        counts = f"tokens: {tokens}, tasks: {len(self.result.tasks)}"
        return f"<Impact: {self.record.model}, {counts}, in {self.path}>"

    def summary(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        tables = ("effects", "conditions")
        return {
            "impact": str(self.path),
            "model": self.record.model,
            "settings": self.record.settings,
            "prompts": self.record.prompts,
            "tokens": [token.model_dump() for token in self.record.tokens],
            "tasks": [task.model_dump() for task in self.result.tasks],
            **{name: getattr(self, name).to_dicts() for name in tables},
            "paired_test": None if self.result.paired_test is None else self.result.paired_test.model_dump(),
            "failed": self.failed,
            "notes": self.record.notes,
            "sequences": self.result.sequences,
            "seconds": self.result.seconds,
        }


def open_impact(path: str | Path) -> Impact:
    """Open a finished impact measurement.

    Raises:
        RunError: the folder holds no impact measurement, or one that is damaged or not finished.

    Examples:
        >>> settings = stickytoken.ImpactSettings(benign=2)
        >>> impact = stickytoken.impact(model, "sts.jsonl", tokens=["[CLS]"], settings=settings, out="impact")
        >>> stickytoken.open_impact("impact").path.name
        'impact'
    """
    return Impact(file_path("the impact", path))


def impacts_in(run: Path) -> tuple[tuple[Impact, ...], tuple[str, ...]]:
    """Return the measurements in a run folder, newest first, and a message for each unreadable one."""
    pattern = f"{IMPACT}-*/{IMPACT_FILE}"
    return resume.measurements_in(
        run, pattern, open_impact, "An impact measurement", lambda impact: impact.record.started
    )
