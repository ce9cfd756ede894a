"""Open finished impact measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import RunError
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.measurement.resume import MeasurementKind as Kind
from stickytoken.measurement.resume import MeasurementRecord, Record, measurements_in, require_vacant
from stickytoken.measurement.store import ResultFolder, require_writable
from stickytoken.validation import file_path, proportion, set_choices, set_whole_numbers

IMPACT_SCHEMA_VERSION = 1


class TokenRecord(Record):
    token_id: int
    token: str  # vocabulary string
    text: str  # decoded text
    kind: str  # sticky (if a run says so), named (otherwise) or benign
    matched_to: int | None  # id of the sticky token that a benign token is compared with


class TaskRecord(Record):
    name: str
    layout: str
    unit: str  # what the intervals resample
    units: int
    texts: int
    edited: int  # number of texts that get copies
    cut: int  # number of texts truncated to make room, the same in every condition
    metrics: list[str]  # the main one first


class ImpactResultRecord(Record):
    sequences: int  # number of texts encoded
    seconds: float  # time spent on shards
    failed: dict[str, str]  # tasks that could not be run, and why
    tasks: list[TaskRecord]


class ImpactRecord(MeasurementRecord):
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
        known = {field.name for field in fields(ImpactSettings)}
        return ImpactSettings(**{name: value for name, value in self.settings.items() if name in known})


def measured_kind(record: ImpactRecord) -> str:
    return "named" if any(token.kind == "named" for token in record.tokens) else "sticky"


IMPACT_FILE = "impact.json"
# Prefix of the names of impact folders.
IMPACT = "impact"
_TEXT, _WHOLE, _NUMBER = pl.String, pl.Int64, pl.Float64
_TOKEN: dict[str, Any] = {"token_id": _WHOLE, "token": _TEXT}
# Columns of each table, with types so that empty tables keep them.
TABLES: dict[str, dict[str, Any]] = {
    "effects.parquet": {
        **dict.fromkeys(("task", "layout", "metric"), _TEXT),
        "main": pl.Boolean,
        "unit": _TEXT,
        "units": _WHOLE,
        **dict.fromkeys(("clean", "sticky", "benign"), _NUMBER),
        **{
            f"{name}{end}": _NUMBER
            for name in ("drop_sticky", "drop_benign", "difference")
            for end in ("", "_low", "_high")
        },
        **dict.fromkeys(("drop_sticky_relative", "drop_benign_relative"), _NUMBER),
        **dict.fromkeys(("tokens", "benign_tokens"), _WHOLE),
        **dict.fromkeys(("effect_size", "p_value", "q_value"), _NUMBER),
    },
    "conditions.parquet": {
        **dict.fromkeys(("task", "metric", "kind"), _TEXT),
        **_TOKEN,
        **dict.fromkeys(("score", "drop", "drop_low", "drop_high"), _NUMBER),
    },
    "scores.parquet": {
        **dict.fromkeys(("task", "metric", "kind"), _TEXT),
        **_TOKEN,
        "repetition": _WHOLE,
        "score": _NUMBER,
    },
    "intrusion.parquet": {
        "corpus": _TEXT,
        "copies": _WHOLE,
        **dict.fromkeys(("hits_sticky", "hits_benign", "ratio", "ratio_low", "ratio_high"), _NUMBER),
        **dict.fromkeys(("rank_sticky", "rank_benign"), _NUMBER),
        **dict.fromkeys(("documents", "cut"), _WHOLE),
    },
    "intrusion_curves.parquet": {
        **dict.fromkeys(("corpus", "kind"), _TEXT),
        **_TOKEN,
        "copies": _WHOLE,
        **dict.fromkeys(("hits", "median_rank"), _NUMBER),
        "copies_needed": _WHOLE,
    },
}


def _is_finished(record: ImpactRecord, folder: ResultFolder) -> bool:
    """Tasks that could not be run are tried again."""
    finished = record.result is not None and not record.result.failed
    return finished and all((folder.path / name).is_file() for name in TABLES)


IMPACTS = Kind(
    "impact",
    IMPACT_FILE,
    lambda folder: folder.read_record(IMPACT_FILE, ImpactRecord, IMPACT_SCHEMA_VERSION),
    _is_finished,
)
_FILLED = (
    *("task", "layout", "metric", "main", "kind", "corpus", "unit", "units", "tokens", "benign_tokens"),
    *("repetition", "copies", "documents", "cut"),
)


class Impact:
    """The results of a finished impact measurement.

    Args:
        path: folder of the measurement.

    Raises:
        RunError: the folder holds no impact measurement, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        folder = ResultFolder(path)
        record = IMPACTS.read(folder) if folder.exists() else None
        if record is None:
            raise RunError(f"there is no impact measurement in {str(path)!r}: it has no {IMPACT_FILE}")
        if record.result is None:
            raise RunError(
                f"the impact measurement in {path} is not finished: run the same command again to continue it"
            )
        self.path = path
        self.record = record
        self.result = record.result
        self._folder = folder

    def __repr__(self) -> str:
        tokens = sum(token.kind != "benign" for token in self.record.tokens)
        counts = f"tokens: {tokens}, tasks: {len(self.result.tasks)}"
        return f"<Impact: {self.record.model}, {counts}, in {self.path}>"

    @property
    def effects(self) -> pl.DataFrame:
        """One row per task and metric: drops of sticky and benign tokens, their difference, the test."""
        return self._table("effects.parquet")

    @property
    def conditions(self) -> pl.DataFrame:
        """One row per task, metric and condition: the score, and its drop from clean with an interval."""
        return self._table("conditions.parquet")

    @property
    def scores(self) -> pl.DataFrame:
        """One row per task, metric, condition and repetition."""
        return self._table("scores.parquet")

    @property
    def intrusion(self) -> pl.DataFrame:
        """One row per number of copies: top-10 hits of sticky and benign copies."""
        return self._table("intrusion.parquet")

    @property
    def intrusion_curves(self) -> pl.DataFrame:
        """One row per token and number of copies: top-10 hits and median rank."""
        return self._table("intrusion_curves.parquet")

    @property
    def failed(self) -> dict[str, str]:
        """Tasks that could not be run, and why."""
        return self.result.failed

    def _table(self, name: str) -> pl.DataFrame:
        return self._folder.read_table(name, TABLES[name], _FILLED)

    def summary(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        return {
            "impact": str(self.path),
            "model": self.record.model,
            "settings": self.record.settings,
            "tokens": [token.model_dump() for token in self.record.tokens],
            "tasks": [task.model_dump() for task in self.result.tasks],
            "effects": self.effects.to_dicts(),
            "conditions": self.conditions.to_dicts(),
            "intrusion": self.intrusion.to_dicts(),
            "intrusion_curves": self.intrusion_curves.to_dicts(),
            "failed": self.failed,
            "notes": self.record.notes,
            "sequences": self.result.sequences,
            "seconds": self.result.seconds,
        }


def open_impact(path: str | Path) -> Impact:
    """Open a finished impact measurement.

    Raises:
        RunError: the folder holds no impact measurement, is damaged or is not finished.
    """
    return Impact(file_path("the impact", path))


def require_place(folder: Path) -> None:
    require_writable(folder)
    files = ResultFolder(folder)
    require_vacant(files, IMPACTS)
    files.require_unlocked()


def impacts_in(run: Path) -> tuple[tuple[Impact, ...], tuple[str, ...]]:
    def opened(folder: Path) -> Impact:
        impact = open_impact(folder)
        for name in TABLES:
            impact._table(name)
        return impact

    return measurements_in(
        run,
        f"{IMPACT}-*/{IMPACT_FILE}",
        opened,
        "An impact measurement",
        lambda impact: impact.record.started,
    )


@dataclass(frozen=True)
class ImpactSettings:
    """Settings of an impact measurement.

    Attributes:
        copies: number of copies of a token in a text.
        placement: where the copies go.
        insertion: whether copies are inserted as ids or as words; MTEB tasks always use words.
        side: which texts get copies.
        sticky: largest number of sticky tokens to take from a run, the worst first.
        benign: number of matched benign tokens for each sticky token.
        seeds: number of random repetitions.
        resamples: number of bootstrap samples of queries, pairs or texts.
        confidence: coverage of the intervals.
        seed: seed of all randomness.

    Raises:
        InputError: a value is out of range.
    """

    copies: int = 8
    placement: Placement = Placement.RANDOM
    insertion: Insertion = Insertion.IDS
    side: Side = Side.DOCUMENT
    sticky: int = 5
    benign: int = 8
    seeds: int = 1
    resamples: int = 1000
    confidence: float = 0.9
    seed: int = 42

    def __post_init__(self) -> None:
        least = {"copies": 1, "sticky": 1, "benign": 1, "seeds": 1, "resamples": 100, "seed": 0}
        set_whole_numbers(self, least)
        set_choices(self, {"placement": Placement, "insertion": Insertion, "side": Side})
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))
