"""A finished run, opened for reading."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from stickytoken.corpora.choice import SentenceSource
from stickytoken.detection.evidence import RunEvidence, read_evidence
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.views import View
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.store import TOKENS_FILE, VOCABULARY_FILE
from stickytoken.methods.entry import Column
from stickytoken.methods.job import StoredSettings
from stickytoken.methods.protocol import AnyMethod, Judgement
from stickytoken.methods.records import (
    DimensionRecord,
    PlanRecord,
    ResultRecord,
    dimensions_table,
    read_dimensions,
    tokens_in,
)
from stickytoken.methods.registry import method_named
from stickytoken.validation import file_path, visible, whole_number

_SHOWN_ROWS = 20

Kind = TypeVar("Kind")


class Run:
    """The results of one finished run.

    Args:
        path: the run folder.

    Raises:
        RunError: The folder is not a run, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        self._folder = RunFolder(path)
        if not self._folder.exists():
            raise RunError(f"no run folder {str(path)!r}")
        self.record: RunRecord = self._folder.read_run()
        if self.record.result is None:
            raise RunError(f"the run in {path} is not finished: run the same command again to continue it")
        self.method: AnyMethod = method_named(self.record.method)
        self.result: ResultRecord = self.record.result
        self.tokens: pl.DataFrame = self._folder.read_table(TOKENS_FILE, self.method.columns)

    def __repr__(self) -> str:
        found = f"{len(self.sticky):,} of {self.record.tokens:,} tokens sticky"
        return f"<Run: {self.record.model.name}, {self.record.method}, {found}, in {self.path}>"

    def _repr_html_(self) -> str:
        """Show the run in a notebook: a summary and a table of the first sticky tokens."""
        titles = {"token_id": "id", "token": "token", "category": "category"}
        listed = self.listed(self.sticky)
        titles |= {column.key: column.title for column in listed} | {"verdict": "verdict"}
        rows = self.sticky.select(list(titles)).head(_SHOWN_ROWS).rows()
        head = "".join(f"<th>{_cell(title)}</th>" for title in titles.values())
        body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
        left_out = len(self.sticky) - len(rows)
        more = f"<p>{left_out:,} more in <code>run.sticky</code></p>" if left_out else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{_cell(repr(self))}</p>{table}{more}"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, worst first."""
        return self.tokens.filter(pl.col("verdict") == "sticky").sort(
            self.method.ranked_by.key, "token_id", descending=[True, False]
        )

    def listed(self, rows: pl.DataFrame) -> list[Column]:
        """Columns of a short table of some tokens; without those of text that are empty for all of them."""
        return [
            column
            for column in self.method.listed
            if column.digits is not None or rows[column.key].null_count() < len(rows)
        ]

    @property
    def model_name(self) -> str:
        """The model as the user named it."""
        return self.record.model.name

    @property
    def available(self) -> int:
        """Vocabulary entries that can occur in text."""
        return self.record.model.available

    @property
    def settings(self) -> StoredSettings:
        """Settings of the method."""
        return self._folder.settings_of(self.record)

    @property
    def vocabulary(self) -> pl.DataFrame:
        """All vocabulary entries with their categories."""
        return self._folder.read_table(VOCABULARY_FILE)

    @property
    def plan(self) -> PlanRecord:
        """What was derived from the model and the corpus before any token.

        Raises:
            RunError: plan.json is missing or damaged.
        """
        plan: PlanRecord | None = self._folder.read_plan(self.method.plan_record)
        if plan is None:
            raise RunError(f"{self.path} has no plan.json: run the same command again to write it")
        return plan

    @property
    def evidence(self) -> RunEvidence | None:
        """Symptom curves, real pairs and the map of the vocabulary; None where none were kept.

        Raises:
            RunError: what is there is damaged.
        """
        return read_evidence(self._folder)

    def plan_of(self, kind: type[Kind]) -> Kind:
        """The plan of a method.

        Raises:
            RunError: the run is of another method, or has no plan.
        """
        return self._of(self.plan, kind)

    def result_of(self, kind: type[Kind]) -> Kind:
        """The result of a method.

        Raises:
            RunError: the run is of another method.
        """
        return self._of(self.result, kind)

    def _of(self, record: object, kind: type[Kind]) -> Kind:
        if not isinstance(record, kind):
            raise RunError(f"{self.path} contains a run of the method {self.record.method}")
        return record

    def token(self, token: int | str) -> pl.DataFrame:
        """The rows of one token, given as id, vocabulary string or decoded text.

        Raises:
            InputError: The run has no such token, or the value is neither an id nor a text.
        """
        if not isinstance(token, str):
            rows = self.tokens.filter(pl.col("token_id") == whole_number("token", token))
        else:
            rows = self.tokens.filter(pl.col("token") == token)
        if rows.is_empty() and isinstance(token, str) and token.strip():
            rows = self.tokens.filter(pl.col("decoded").str.strip_chars() == token.strip())
        if rows.is_empty():
            raise InputError(f"the run in {self.path} has no token {token!r}")
        return rows

    @property
    def dimensions(self) -> list[DimensionRecord]:
        """What was found by dimension and layer, the model as it is first; empty without further ones.

        Raises:
            RunError: dimensions.json is damaged.
        """
        return read_dimensions(self.path)

    def by_dimension(self) -> pl.DataFrame:
        """One row per dimension and layer: counts of verdicts and severities, lifts, spread of similarities.

        The model as it is comes first. The table is empty if the run was made without dimensions and layers.
        """
        return dimensions_table(self.dimensions)

    def at(self, dimension: int, layer: int | None = None) -> pl.DataFrame:
        """The tokens by so many first components of the vectors, with the columns of `tokens`.

        Args:
            dimension: number of components.
            layer: layers that run; None is the model as it is.

        Raises:
            InputError: the run has no such dimension or layer.
            RunError: the table is missing or damaged.
        """
        known = [record.view for record in self.dimensions]
        view = View(
            whole_number("dimension", dimension, 1),
            None if layer is None else whole_number("layer", layer, 1),
        )
        if view not in known:
            said = "; ".join(map(str, known)) or "only the model as it is"
            raise InputError(f"the run in {self.path} has no {view}: it has {said}")
        return tokens_in(self.path, view)

    def judge(self, sentences: SentenceSource, **options: Any) -> Judgement:
        """Measure what the tokens do to the texts of a corpus; see `stickytoken.judge`."""
        from stickytoken.detection.judge import judge  # it opens runs

        return judge(self, sentences, **options)

    def summary(self) -> dict[str, Any]:
        """The run in JSON values, the sticky tokens included."""
        return {
            "run": str(self.path),
            "method": self.record.method,
            "model": self.record.model.name,
            "available": self.record.model.available,
            **self.result.model_dump(),
            "sticky": self.sticky.to_dicts(),
            **({"dimensions": views} if (views := self.by_dimension().to_dicts()) else {}),
        }


def _cell(value: object) -> str:
    """Text for HTML; token text may hold markup and control characters."""
    if value is None:
        return "-"
    return html.escape(visible(f"{value:.4g}" if isinstance(value, float) else str(value)))


def is_run(path: str | Path) -> bool:
    """Check whether a folder contains a run, finished or not."""
    return RunFolder(file_path("the run", path)).holds_run()


def open_run(path: Run | str | Path) -> Run:
    """Open a finished run; a `Run` is returned as it is.

    Raises:
        InputError: The argument is not a path.
        RunError: The folder is not a run, is damaged or is not finished.
    """
    return path if isinstance(path, Run) else Run(file_path("the run", path))
