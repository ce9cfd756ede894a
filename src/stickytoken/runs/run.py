"""A finished run, opened for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import InputError, RunError
from stickytoken.runs.schema import ResultRecord, RunRecord, StdPlanRecord
from stickytoken.runs.std_results import TOKEN_COLUMNS
from stickytoken.runs.store import TOKENS_FILE, VOCABULARY_FILE, RunFolder


class Run:
    """The results of one finished run.

    Args:
        path: the run folder.

    Raises:
        RunError: the folder is no run, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunFolder(path)
        if not self._folder.exists():
            raise RunError(f"no run folder {str(path)!r}")
        self.record: RunRecord = self._folder.read_run()
        if self.record.result is None:
            raise RunError(f"the run in {path} is not finished: run the same command again to continue it")
        self.result: ResultRecord = self.record.result
        self.tokens: pl.DataFrame = self._folder.read_table(TOKENS_FILE)
        if missing := [column for column in TOKEN_COLUMNS if column not in self.tokens.columns]:
            raise RunError(
                f"{path / TOKENS_FILE} has no column {missing[0]!r}: delete it and run the same command again"
            )

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, highest validation rate first."""
        return self.tokens.filter(pl.col("verdict") == "sticky").sort(
            "validation_rate", "token_id", descending=[True, False]
        )

    @property
    def vocabulary(self) -> pl.DataFrame:
        """All vocabulary entries with their categories."""
        return self._folder.read_table(VOCABULARY_FILE)

    @property
    def plan(self) -> StdPlanRecord:
        """The mean similarity and the sentence pairs."""
        plan = self._folder.read_plan(StdPlanRecord)
        if plan is None:
            raise RunError(f"{self.path} has no plan.json: delete the folder and start the run again")
        return plan

    def token(self, token: str) -> pl.DataFrame:
        """The rows of one token, given as vocabulary string or decoded text.

        Raises:
            InputError: the run has no such token.
        """
        rows = self.tokens.filter(pl.col("token") == token)
        if rows.is_empty() and token.strip():
            rows = self.tokens.filter(pl.col("decoded").str.strip_chars() == token.strip())
        if rows.is_empty():
            raise InputError(f"the run in {self.path} has no token {token!r}")
        return rows

    def summary(self) -> dict[str, Any]:
        """The run in JSON values, the sticky tokens included."""
        return {
            "run": str(self.path),
            "method": self.record.method,
            "model": self.record.model.name,
            "available": self.record.model.available,
            "scored": self.result.scored,
            "candidates": self.result.candidates,
            "score_threshold": self.result.score_threshold,
            "rate_threshold": self.result.rate_threshold,
            "sticky": self.sticky.to_dicts(),
            "seconds": self.result.seconds,
            "sequences": self.result.sequences,
        }


def open_run(path: str | Path) -> Run:
    """Open a finished run.

    Raises:
        RunError: the folder is no run, is damaged or is not finished.
    """
    return Run(Path(path).expanduser())
