"""Read everything a report shows from a run folder; what is absent is listed as missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.comparisons.compared_run import ComparedRun, deviations, short_headline, tone_of
from stickytoken.comparisons.result import shown_copies
from stickytoken.detection.evidence import RunEvidence, read_evidence
from stickytoken.detection.judge import NextStep, next_steps
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import RunFolder, RunRecord, is_flagged
from stickytoken.errors import InputError, RunError
from stickytoken.explanation.files import (
    EXPLANATIONS_FOLDER,
    StoredExplanation,
    explanation_folders,
    read_explanation,
)
from stickytoken.impacts.results import Impact, impacts_in
from stickytoken.measurement.resume import differences
from stickytoken.measurement.store import VOCABULARY_FILE
from stickytoken.methods.entry import Column, Fact, Scale
from stickytoken.methods.job import StoredSettings
from stickytoken.methods.protocol import AnyMethod
from stickytoken.methods.records import PlanRecord
from stickytoken.methods.registry import method_named
from stickytoken.repairs.result import RepairRecord, repairs_in
from stickytoken.reports._sections import impact_facts, impact_notes, repair_facts, repair_notes
from stickytoken.scanning.results import Scan, scans_in
from stickytoken.validation import visible
from stickytoken.vocabulary import WordMark, kind_of, script_of, word_mark

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
    """Read a run folder, finished or not."""
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
    """Return the explanations, and what is wrong with those that cannot be shown."""
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


MOST_CARDS = 12
"""Sticky tokens with a card of their own."""
# The least similarity that two digits show.
_LEAST_SHOWN = 0.005


def headline(content: RunContent) -> str:
    """Say in one sentence whether this model has a problem, and how bad it is."""
    if content.run is None:
        # Stages overlap, and beside a selection of tokens random ones are measured.
        measured = min(max(content.measured.values(), default=0), content.record.tokens)
        return (
            f"{content.record.model.name}: not finished, {measured:,} of {content.record.tokens:,} tokens "
            "have been measured so far."
        )
    return short_headline(content.run)


def tone(content: RunContent) -> str:
    """Return how bad it is: ``severe``, ``serious``, ``mild``, ``clean`` or ``unknown``."""
    if content.run is None:
        return "unknown"
    return tone_of(content.sticky)


def key_facts(content: RunContent) -> list[Fact]:
    """Return the numbers to read first."""
    record = content.record
    if content.run is None:
        return [
            Fact(f"{count:,}", f"tokens measured in the stage {stage}")
            for stage, count in content.measured.items()
        ]
    examined, available = len(content.tokens), record.model.available
    of = (
        f"all {available:,} tokens that can appear in text"
        if examined == available
        else f"{examined:,} tokens examined ({available:,} can appear in text)"
    )
    sticky = Fact(f"{len(content.sticky):,}", f"sticky, of {of}")
    return [sticky, *content.method.key_facts(content.run), *_copies(content.run)]


def _copies(run: Run) -> list[Fact]:
    compared = ComparedRun(run.model_name, run)
    if compared.copies is None or compared.worst is None or compared.scale is None:
        return []
    # The few texts of a curve can miss what many texts show: then it has no number to give.
    if compared.copies.enough is None and (compared.worst.deviations or 0.0) >= compared.scale.serious:
        return []
    number, token = shown_copies(compared.copies), visible(repr(compared.worst.token))
    unit, are = ("copy", "is") if number == "1" else ("copies", "are")
    return [
        Fact(number, f"{unit} of {token} {are} needed for a serious effect, {compared.scale.serious:g} SD")
    ]


def meaning(content: RunContent) -> str | None:
    """Say for a reader who has never heard of sticky tokens what the headline means; None if unfinished."""
    if content.run is None:
        return None
    told = (
        "A sticky token draws texts together: a text that repeats it becomes more similar to unrelated "
        "texts, whatever it says, and turns up in searches that it has nothing to do with. "
    )
    raised = _raised(content)
    if len(content.sticky):
        return f"{told}This model has such tokens{f': {raised}' if raised else ''}."
    if len(content.tokens) < content.record.model.available:
        return f"{told}None of the tokens examined does so enough to matter; the others may."
    most = f": even {raised}. It" if raised else ": it"
    return f"{told}No token of this model does so enough to matter{most} needs no repair."


def _raised(content: RunContent) -> str | None:
    """Say how far the token that lifts most raises similarities; None without a scale or a rise."""
    worst = worst_tokens(content, 1)
    if content.scale is None or worst.is_empty() or worst["lift"][0] <= 0:
        return None
    lift = worst["lift"][0]
    by = f"{lift:.2f}" if lift >= _LEAST_SHOWN else "less than 0.01"
    token = visible(repr(worst["token"][0]))
    return f"copies of {token} raise the cosine similarity of unrelated texts by {by} on average"


def steps(content: RunContent) -> tuple[NextStep, ...]:
    """Return what to do about the verdicts; nothing for an unfinished run."""
    return () if content.run is None else next_steps(content.run)


def notes(content: RunContent) -> list[str]:
    """Return what a reader should know before relying on the run."""
    if content.run is None:
        return list(content.missing)
    found = content.method.notes(content.run)
    if len(content.tokens) < content.record.model.available:
        found = [
            f"only {len(content.tokens):,} of {content.record.model.available:,} available tokens were "
            "examined: the others may be sticky too",
            *found,
        ]
    made = (*impact_notes(content.impacts), *repair_notes(content.repairs))
    return [*found, *content.missing, *content.unread, *made]


def run_details(content: RunContent) -> dict[str, dict[str, Any]]:
    """Return model, corpus, settings, versions and timing of the run, in groups."""
    record = content.record
    result = {} if record.result is None else record.result.model_dump()
    groups: dict[str, dict[str, Any]] = {
        "model": _model(record) | _encoder(record.identity_parts),
        "corpus": record.corpus.model_dump(),
        "result": result,
        "settings": dict(record.settings),
        "plan": {} if content.plan is None else content.method.plan_facts(content.plan),
        "vocabulary": category_counts(content.vocabulary) if content.vocabulary is not None else {},
        "versions": dict(record.versions),
        "hardware": dict(record.hardware),
        "run": {
            "folder": str(content.path),
            "identity": record.identity,
            "started": record.started,
            "schema version": record.schema_version,
            "method": record.method,
        },
    }
    if content.evidence is not None:
        evidence = content.evidence.record
        groups["pictures"] = evidence.model_dump(mode="json", exclude={"carriers"}) | {
            "carriers": len(evidence.carriers)
        }
    groups |= impact_facts(content.impacts) | repair_facts(content.repairs)
    return {name: values for name, values in groups.items() if values}


def _model(record: RunRecord) -> dict[str, Any]:
    """Describe the model; of how it is loaded, only what was set."""
    described = record.model.model_dump()
    if loading := described.get("loading"):
        described["loading"] = {
            name: value for name, value in loading.items() if value not in (None, "", False)
        }
    return described


def _encoder(parts: dict[str, Any]) -> dict[str, Any]:
    encoder = parts.get("encoder")
    return dict(encoder) if isinstance(encoder, dict) else {}


def method_description(content: RunContent) -> str:
    """Describe the method in a few sentences."""
    return content.method.how(content.settings)


def worst_tokens(content: RunContent, most: int = MOST_CARDS) -> pl.DataFrame:
    """Return the worst sticky tokens; if none is sticky, the three that rank highest."""
    if content.run is None:
        return content.tokens
    if len(content.sticky):
        return content.sticky.head(most)
    ranked = content.method.ranked_by.key
    return (
        content.tokens.filter(pl.col(ranked).is_not_null())
        .sort(ranked, "token_id", descending=[True, False])
        .head(3)
    )


_FIRST = (Column("token", "token"), Column("verdict", "verdict"))
_LAST = (Column("entry", "entry"), Column("script", "script"), Column("token_id", "id"))


def columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns of a table of tokens; those of the method are in the middle."""
    return (*_FIRST, *content.method.reported, *_LAST)


def filled_columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns in which a flagged token has a value: a page has no room for empty ones."""
    flagged = content.flagged
    return tuple(
        column
        for column in columns(content)
        if column.key not in flagged.columns or flagged[column.key].is_not_null().any()
    )


def flagged_rows(content: RunContent) -> list[dict[str, Any]]:
    """Return all flagged tokens, sticky ones first, with `sd`."""
    return rows_of(content, content.flagged)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of tokens with `sd`, their lift beyond an ordinary token's."""
    if tokens.is_empty():
        return []
    return tokens.with_columns(sd=standardized_lift(content)).to_dicts()


@dataclass(frozen=True)
class Pair:
    """Two texts before and after copies.

    Attributes:
        which: ``typical`` or ``largest``.
        anchor: the text that stays.
        carrier: the text that the copies are appended to.
        copies: how many.
        before: cosine similarity.
        after: the same with the copies.
    """

    which: str
    anchor: str
    carrier: str
    copies: int
    before: float
    after: float


@dataclass(frozen=True)
class Card:
    """One token with its evidence.

    Attributes:
        row: of the table of tokens, with ``sd``.
        strip: its interval on the scale of all cards, in percent: low, value, high and the ordinary
            token; None if there is no interval.
        pairs: what it did to pairs of texts; empty if the run holds none.
    """

    row: dict[str, Any]
    strip: dict[str, float] | None
    pairs: tuple[Pair, ...]


def cards(content: RunContent) -> list[Card]:
    """Return cards of the worst tokens; if none is sticky, of those that rank highest."""
    rows = rows_of(content, worst_tokens(content))
    strips = _strips(content, rows)
    pairs = _pairs(content)
    return [Card(row, strip, pairs.get(row["token_id"], ())) for row, strip in zip(rows, strips, strict=True)]


def card_of(content: RunContent, token_id: int) -> Card | None:
    """Return the card of any token; None if the run did not examine it."""
    rows = rows_of(content, content.tokens.filter(token_id=token_id))
    if not rows:
        return None
    return Card(rows[0], _strips(content, rows)[0], _pairs(content).get(token_id, ()))


def _strips(content: RunContent, rows: list[dict[str, Any]]) -> list[dict[str, float] | None]:
    scale = content.scale
    if scale is None or not rows or any(row.get("lift_low") is None for row in rows):
        return [None] * len(rows)
    ordinary = scale.ordinary
    low = min(0.0, ordinary, *(row["lift_low"] for row in rows))
    high = max(ordinary, *(row["lift_high"] for row in rows))
    span = float(high - low) or 1.0

    def place(value: float) -> float:
        return round(2 + 96 * float(value - low) / span, 2)

    return [
        {
            "low": place(row["lift_low"]),
            "value": place(row["lift"]),
            "high": place(row["lift_high"]),
            "ordinary": place(ordinary),
        }
        for row in rows
    ]


def _pairs(content: RunContent) -> dict[int, tuple[Pair, ...]]:
    if content.evidence is None:
        return {}
    copies = content.evidence.record.pair_copies
    return {
        row["token_id"]: tuple(
            Pair(
                which,
                row[f"{which}_anchor"],
                row[f"{which}_carrier"],
                copies,
                row[f"{which}_before"],
                row[f"{which}_after"],
            )
            for which in ("typical", "largest")
            if row[f"{which}_before"] is not None
        )
        for row in content.evidence.tokens.to_dicts()
    }
