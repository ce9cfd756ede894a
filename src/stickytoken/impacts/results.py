"""Open finished impact measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import RunError
from stickytoken.impacts.record import IMPACT_SCHEMA_VERSION, ImpactRecord
from stickytoken.measurement.atomic import require_writable
from stickytoken.measurement.resume import Kind, measurements_in, require_vacant
from stickytoken.measurement.store import ResultFolder
from stickytoken.validation import file_path

IMPACT_FILE = "impact.json"
# Prefix of the names of impact folders.
IMPACT = "impact"
_TEXT, _WHOLE, _NUMBER = pl.String, pl.Int64, pl.Float64
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
        "token_id": _WHOLE,
        "token": _TEXT,
        **dict.fromkeys(("score", "drop", "drop_low", "drop_high"), _NUMBER),
    },
    "scores.parquet": {
        **dict.fromkeys(("task", "metric", "kind"), _TEXT),
        "token_id": _WHOLE,
        "token": _TEXT,
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
        "token_id": _WHOLE,
        "token": _TEXT,
        "copies": _WHOLE,
        **dict.fromkeys(("hits", "median_rank"), _NUMBER),
        "copies_needed": _WHOLE,
    },
}


class Impact:
    """The results of a finished impact measurement.

    Args:
        path: folder of the measurement.

    Raises:
        RunError: the folder holds no impact measurement, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        folder = ResultFolder(path)
        record = _read_record(folder) if folder.exists() else None
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

    def require_tables(self) -> None:
        """Read every table once.

        Raises:
            RunError: one is missing, damaged or lacks a column.
        """
        for name in TABLES:
            self._table(name)

    def _table(self, name: str) -> pl.DataFrame:
        return self._folder.read_table(name, tuple(TABLES[name]))

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


def _read_record(folder: ResultFolder) -> ImpactRecord | None:
    return folder.read_record(IMPACT_FILE, ImpactRecord, IMPACT_SCHEMA_VERSION)


def _is_finished(record: ImpactRecord, folder: ResultFolder) -> bool:
    """Whether nothing is left to do; tasks that could not be run are tried again."""
    finished = record.result is not None and not record.result.failed
    return finished and all((folder.path / name).is_file() for name in TABLES)


IMPACTS = Kind("impact", IMPACT_FILE, _read_record, _is_finished)


def open_impact(path: str | Path) -> Impact:
    """Open a finished impact measurement.

    Raises:
        RunError: the folder holds no impact measurement, is damaged or is not finished.
    """
    return Impact(file_path("the impact", path))


def require_place(folder: Path) -> None:
    """Refuse a folder that cannot take an impact measurement, without creating it.

    Raises:
        RunError: it cannot be written, holds something else, or is being written by another process.
    """
    require_writable(folder)
    files = ResultFolder(folder)
    require_vacant(files, IMPACTS)
    files.require_unlocked()


def impacts_in(run: Path) -> tuple[tuple[Impact, ...], tuple[str, ...]]:
    """Open the finished measurements in a run folder whose tables are whole; see `measurements_in`."""

    def opened(folder: Path) -> Impact:
        impact = open_impact(folder)
        impact.require_tables()
        return impact

    return measurements_in(
        run,
        f"{IMPACT}-*/{IMPACT_FILE}",
        opened,
        "An impact measurement",
        lambda impact: impact.record.started,
    )
