"""Read everything a report shows from a run folder; what is absent is listed as missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from stickytoken.comparisons.compared_run import deviations
from stickytoken.detection.evidence import RunEvidence, read_evidence
from stickytoken.detection.flagged import is_flagged
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import RunFolder
from stickytoken.detection.schema import RunRecord
from stickytoken.errors import InputError, RunError
from stickytoken.explanation.files import (
    StoredExplanation,
    explanation_folders,
    read_explanation,
)
from stickytoken.explanation.record import EXPLANATIONS_FOLDER
from stickytoken.impacts.results import Impact, impacts_in
from stickytoken.measurement.identity import differences
from stickytoken.measurement.store import VOCABULARY_FILE
from stickytoken.methods.descriptions import Scale
from stickytoken.methods.protocol import AnyMethod
from stickytoken.methods.records import PlanRecord
from stickytoken.methods.registry import method_named
from stickytoken.methods.stored_settings import StoredSettings
from stickytoken.repairs.record import RepairRecord
from stickytoken.repairs.result import repairs_in
from stickytoken.scanning.results import Scan, scans_in
from stickytoken.vocabulary.kinds import WordMark, kind_of, script_of, word_mark

UNFINISHED = (
    "This run is not finished, so there are no verdicts yet. Run the same `stickytoken detect` command "
    "again to continue it."
)
WITHOUT_EVIDENCE = (
    "This run was made without symptom curves, example pairs and the map. Run the same `stickytoken detect` "
    "command again to add them; nothing else is recomputed."
)


@dataclass(frozen=True)
class RunContent:
    """Everything that a report shows of one run.

    Attributes:
        path: the run folder.
        record: run.json.
        run: the finished run; None if it is unfinished.
        plan: plan.json; None if it is not written yet.
        tokens: tokens.parquet with entry, script, length and position; empty if it is unfinished.
        vocabulary: the vocabulary with its categories; None if it is not written yet.
        evidence: curves, pairs and the map; None if they were not kept.
        measured: number of tokens with committed results, by stage; only of an unfinished run.
        missing: what is absent and how to get it, one sentence each.
        explanations: of tokens; empty if the run is unfinished.
    """

    path: Path
    record: RunRecord
    run: Run | None
    plan: PlanRecord | None
    tokens: pl.DataFrame
    vocabulary: pl.DataFrame | None
    evidence: RunEvidence | None
    measured: dict[str, int]
    missing: tuple[str, ...]
    explanations: tuple[StoredExplanation, ...] = ()

    @property
    def flagged(self) -> pl.DataFrame:
        """Sticky tokens, then topical ones, each worst first."""
        if self.run is None:
            return self.tokens
        return self.tokens.filter(is_flagged()).sort(
            pl.col("verdict") == "sticky",
            self.method.ranked_by.key,
            "token_id",
            descending=[True, True, False],
        )

    @property
    def sticky(self) -> pl.DataFrame:
        """Sticky tokens, worst first."""
        return self.flagged.filter(pl.col("verdict") == "sticky") if self.run is not None else self.tokens

    @property
    def method(self) -> AnyMethod:
        """The method of the run."""
        return method_named(self.record.method)

    @property
    def settings(self) -> StoredSettings:
        """Settings of the method."""
        return RunFolder(self.path).settings_of(self.record)

    @property
    def scale(self) -> Scale | None:
        """What makes lifts comparable; None if the method has no scale or the run is unfinished."""
        return None if self.run is None else self.method.scale(self.run)

    @property
    def confidence(self) -> str | None:
        """Coverage of the intervals in percent; None if there are none."""
        return None if self.scale is None else f"{100 * self.scale.confidence:.4g}"

    @property
    def impacts(self) -> tuple[Impact, ...]:
        """Finished impact measurements in the run folder, the latest first."""
        return self._impacts[0]

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Finished scans in the run folder, the latest first."""
        return self._scans[0]

    @property
    def repairs(self) -> tuple[RepairRecord, ...]:
        """Repairs of the model of the run, the latest first."""
        return self._repairs[0]

    @property
    def unread(self) -> tuple[str, ...]:
        """One sentence for each impact measurement, scan and repair that cannot be shown."""
        return (*self._impacts[1], *self._scans[1], *self._repairs[1])

    @cached_property
    def _impacts(self) -> tuple[tuple[Impact, ...], tuple[str, ...]]:
        return impacts_in(self.path)

    @cached_property
    def _scans(self) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
        return scans_in(self.path)

    @cached_property
    def _repairs(self) -> tuple[tuple[RepairRecord, ...], tuple[str, ...]]:
        return repairs_in(self.path)


def read_content(path: str | Path, explanations: Path | None = None) -> RunContent:
    """Read a run folder, finished or not.

    Args:
        path: the run folder.
        explanations: a folder that `explain` wrote to; None takes the run's own.

    Raises:
        InputError: the folder of explanations is empty.
        RunError: the folder is not a run, is damaged or has a newer schema; or so are explanations that were
            asked for.
    """
    folder = RunFolder(Path(path).expanduser())
    if not folder.exists():
        raise RunError(f"no run folder {str(path)!r}")
    record = folder.read_run()
    vocabulary = (
        folder.read_table(VOCABULARY_FILE, ("token_id", "token", "decoded", "category"))
        if (folder.path / VOCABULARY_FILE).is_file()
        else None
    )
    if record.result is None:
        plan = folder.read_plan(method_named(record.method).plan_record)
        return RunContent(
            folder.path,
            record,
            None,
            plan,
            pl.DataFrame(),
            vocabulary,
            None,
            folder.committed(),
            (UNFINISHED,),
        )
    run = open_run(folder.path)
    evidence = read_evidence(folder)
    tokens = classified(run.tokens, vocabulary)
    found, unread = _explanations(run, explanations)
    missing = (*(() if evidence is not None else (WITHOUT_EVIDENCE,)), *unread)
    return RunContent(
        folder.path, record, run, run.plan, tokens, vocabulary, evidence, {}, missing, tuple(found)
    )


def _explanations(run: Run, asked: Path | None) -> tuple[list[StoredExplanation], list[str]]:
    """Return the explanations, and what is wrong with those that cannot be shown.

    Explanations that were asked for must be readable. One that lies in the run folder may be damaged without
    costing the rest of the report.
    """
    place = run.path / EXPLANATIONS_FOLDER if asked is None else asked
    folders = explanation_folders(place)
    if asked is not None and not folders:
        raise InputError(f"{asked} contains no explanation: pass the folder that explain --out wrote to")
    names = dict(run.tokens.select("token_id", "token").iter_rows())
    found: list[StoredExplanation] = []
    unread: list[str] = []
    for folder in folders:
        try:
            found.append(_of_this_model(read_explanation(folder), run, names))
        except RunError as error:
            if asked is not None:
                raise
            unread.append(f"An explanation is not shown: {error}.")
    return found, unread


def _of_this_model(found: StoredExplanation, run: Run, names: dict[int, str | None]) -> StoredExplanation:
    own, explained = (each.identity_parts.get("encoder") for each in (run.record, found.record))
    if isinstance(own, dict) and (parts := differences(own, explained or {})):
        raise RunError(
            f"{found.path} explains another model, not that of the run (they differ in {', '.join(parts)}): "
            "run explain with the model of the run"
        )
    token_id, token = found.token.token_id, found.token.token
    if names.get(token_id, token) != token:
        raise RunError(
            f"{found.path} explains the token {token!r}, and the run's token {token_id} is "
            f"{names[token_id]!r}: it belongs to another model"
        )
    return found


def classified(tokens: pl.DataFrame, vocabulary: pl.DataFrame | None) -> pl.DataFrame:
    """Describe the entries: columns entry (its kind), script, length and position.

    The length is in characters, the position the share of the vocabulary before the entry.

    Args:
        tokens: with token_id, token, decoded, category.
        vocabulary: all entries, for the word mark and the positions; None takes the tokens themselves.
    """
    whole = tokens if vocabulary is None else vocabulary
    mark = word_mark(whole["token"].drop_nulls())
    size = max(1, len(whole) - 1)
    ranks = whole.select("token_id").sort("token_id").with_row_index("rank")
    rows = zip(tokens["token"], tokens["decoded"], tokens["category"], strict=True)
    kinds, scripts, lengths = _described(list(rows), mark)
    return (
        tokens.join(ranks, on="token_id", how="left")
        .with_columns(
            entry=pl.Series(kinds, dtype=pl.String),
            script=pl.Series(scripts, dtype=pl.String),
            length=pl.Series(lengths, dtype=pl.Int64),
            position=pl.col("rank") / size,
        )
        .drop("rank")
    )


def _described(
    rows: list[tuple[str | None, str | None, str | None]], mark: WordMark
) -> tuple[list[str], list[str], list[int]]:
    kinds, scripts, lengths = [], [], []
    for token, decoded, category in rows:
        text = decoded or ""
        kinds.append(kind_of(token or "", text, category or "", mark).value)
        scripts.append(script_of(text))
        lengths.append(len(text.strip()))
    return kinds, scripts, lengths


def standardized_lift(content: RunContent) -> pl.Expr:
    """Return the lift beyond an ordinary token's, in standard deviations of the model's similarities."""
    return deviations(content.scale)


def category_counts(vocabulary: pl.DataFrame) -> dict[str, int]:
    """Count the entries by category, most frequent first."""
    return dict(Counter(vocabulary["category"].to_list()).most_common())
