"""Read everything a report shows from a run folder, and say it; what is absent is listed as missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.comparisons.compared_run import ComparedRun, deviations, short_headline, tone_of
from stickytoken.detection.run import NextStep, Run, next_steps, open_run
from stickytoken.detection.run_folder import RunEvidence, RunFolder, RunRecord, is_flagged, read_evidence
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
from stickytoken.methods.job import PlanRecord, StoredSettings
from stickytoken.methods.protocol import AnyMethod
from stickytoken.methods.registry import method_named
from stickytoken.repairs.result import RepairRecord, repairs_in
from stickytoken.scanning.results import Scan, scans_in
from stickytoken.validation import visible
from stickytoken.vocabulary import kind_of, script_of, word_mark

_UNFINISHED = (
    "This run is not finished, so there are no verdicts yet. Run the same `stickytoken detect` command "
    "again to continue it."
)
_WITHOUT_EVIDENCE = (
    "This run was made without symptom curves and example pairs. Run the same `stickytoken detect` "
    "command again to add them; nothing else is recomputed."
)


@dataclass(frozen=True)
class RunContent:
    """Everything that a report shows of one run."""

    path: Path  # the run folder
    record: RunRecord  # run.json
    plan: PlanRecord | None  # plan.json; None if it is not written yet
    vocabulary: pl.DataFrame | None  # the vocabulary with its categories; None if it is not written yet
    run: Run | None = None  # the finished run; None if it is unfinished
    # tokens.parquet with entry, script, length and position; empty if it is unfinished
    tokens: pl.DataFrame = field(default_factory=pl.DataFrame)
    evidence: RunEvidence | None = None  # curves and pairs; None if they were not kept
    # Number of tokens with committed results, by stage; only of an unfinished run
    measured: dict[str, int] = field(default_factory=dict)
    explanations: tuple[StoredExplanation, ...] = ()  # of tokens; empty if the run is unfinished
    impacts: tuple[Impact, ...] = ()  # finished measurements in the run folder, the latest first
    scans: tuple[Scan, ...] = ()  # finished scans in the run folder, the latest first
    repairs: tuple[RepairRecord, ...] = ()  # of the model of the run, the latest first
    missing: tuple[str, ...] = ()  # what is absent or cannot be shown, one sentence each

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
        return method_named(self.record.method)

    @property
    def settings(self) -> StoredSettings:
        return RunFolder(self.path).settings_of(self.record)

    @property
    def scale(self) -> Scale | None:
        """What makes lifts comparable; None if the method has no scale or the run is unfinished."""
        return None if self.run is None else self.method.scale(self.run)

    @property
    def confidence(self) -> str | None:
        """Coverage of the intervals in percent; None if there are none."""
        return None if self.scale is None else f"{100 * self.scale.confidence:.4g}"


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
    impacts, no_impacts = impacts_in(folder.path)
    scans, no_scans = scans_in(folder.path)
    repairs, no_repairs = repairs_in(folder.path)
    made: dict[str, Any] = {"impacts": impacts, "scans": scans, "repairs": repairs}
    if record.result is None:
        plan = folder.read_plan(method_named(record.method).plan_record)
        measured = folder.committed()
        return RunContent(
            folder.path, record, plan, vocabulary, measured=measured, missing=(_UNFINISHED,), **made
        )
    run = open_run(folder.path)
    evidence = read_evidence(folder)
    found, not_shown = _explanations(run, explanations)
    return RunContent(
        folder.path,
        record,
        run.plan,
        vocabulary,
        run,
        _classified(run.tokens, vocabulary),
        evidence,
        explanations=tuple(found),
        missing=(
            *([] if evidence else [_WITHOUT_EVIDENCE]),
            *(*not_shown, *no_impacts, *no_scans, *no_repairs),
        ),
        **made,
    )


def _explanations(run: Run, asked: Path | None) -> tuple[list[StoredExplanation], list[str]]:
    """Return the explanations, and what is wrong with those that cannot be shown."""
    folders = explanation_folders(run.path / EXPLANATIONS_FOLDER if asked is None else asked)
    if asked is not None and not folders:
        raise InputError(f"{asked} contains no explanation: pass the folder that explain --out wrote to")
    names = dict(run.tokens.select("token_id", "token").iter_rows())
    found: list[StoredExplanation] = []
    unread: list[str] = []
    for folder in folders:
        try:
            explanation = read_explanation(folder)
            _require_own(explanation, run, names)
            found.append(explanation)
        except RunError as error:
            if asked is not None:
                raise
            unread.append(f"An explanation is not shown: {error}.")
    return found, unread


def _require_own(found: StoredExplanation, run: Run, names: dict[int, str | None]) -> None:
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


def _classified(tokens: pl.DataFrame, vocabulary: pl.DataFrame | None) -> pl.DataFrame:
    """Describe the entries: columns entry (its kind), script, length and position.

    The length is in characters, the position the share of the vocabulary before the entry.
    """
    whole = tokens if vocabulary is None else vocabulary
    mark = word_mark(whole["token"].drop_nulls())
    ranks = whole.select("token_id").sort("token_id").with_row_index("rank")
    rows = [
        (kind_of(token or "", decoded or "", category or "", mark).value, script_of(decoded or ""))
        for token, decoded, category in tokens.select("token", "decoded", "category").iter_rows()
    ]
    lengths = [len((decoded or "").strip()) for decoded in tokens["decoded"]]
    return (
        tokens.join(ranks, on="token_id", how="left")
        .with_columns(
            entry=pl.Series([kind for kind, _ in rows], dtype=pl.String),
            script=pl.Series([script for _, script in rows], dtype=pl.String),
            length=pl.Series(lengths, dtype=pl.Int64),
            position=pl.col("rank") / max(1, len(whole) - 1),
        )
        .drop("rank")
    )


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
    return "unknown" if content.run is None else tone_of(content.sticky)


def key_facts(content: RunContent) -> list[Fact]:
    if content.run is None:
        return [
            Fact(f"{count:,}", f"tokens measured in the stage {stage}")
            for stage, count in content.measured.items()
        ]
    examined, available = len(content.tokens), content.record.model.available
    of = (
        f"all {available:,} tokens that can appear in text"
        if examined == available
        else f"{examined:,} tokens examined ({available:,} can appear in text)"
    )
    facts = [Fact(f"{len(content.sticky):,}", f"sticky, of {of}"), *content.method.key_facts(content.run)]
    compared = ComparedRun(content.run.model_name, content.run)
    copies, worst, scale = compared.copies, compared.worst, compared.scale
    if copies is None or worst is None or scale is None:
        return facts
    # The few texts of a curve can miss what many texts show: then it has no number to give.
    if copies.enough is not None or (worst.deviations or 0.0) < scale.serious:
        count, token = str(copies), visible(repr(worst.token))
        unit, are = ("copy", "is") if count == "1" else ("copies", "are")
        said = f"{unit} of {token} {are} needed for a serious effect, {scale.serious:g} SD"
        facts.append(Fact(count, said))
    return facts


def meaning(content: RunContent) -> str | None:
    """Say for a reader who has never heard of sticky tokens what the headline means; None if unfinished."""
    if content.run is None:
        return None
    told = (
        "A sticky token draws texts together: a text that repeats it becomes more similar to unrelated "
        "texts, whatever it says, and turns up in searches that it has nothing to do with. "
    )
    raised = ""
    worst = _worst_tokens(content).head(1)
    if content.scale is not None and len(worst) and worst["lift"][0] > 0:
        lift, token = worst["lift"][0], visible(repr(worst["token"][0]))
        by = f"{lift:.2f}" if lift >= _LEAST_SHOWN else "less than 0.01"
        raised = f"copies of {token} raise the cosine similarity of unrelated texts by {by} on average"
    if len(content.sticky):
        return f"{told}This model has such tokens{f': {raised}' if raised else ''}."
    if not content.method.measures_lift:
        method = content.record.method
        return f"{told}The method {method} puts no tokens into texts, so it cannot tell whether any does."
    if len(content.tokens) < content.record.model.available or not content.method.judges_every_token:
        return f"{told}None of the tokens examined does so enough to matter; the others may."
    most = f": even {raised}. It" if raised else ": it"
    return f"{told}No token of this model does so enough to matter{most} needs no repair."


def steps(content: RunContent) -> tuple[NextStep, ...]:
    """Return what to do about the verdicts; nothing for an unfinished run."""
    return () if content.run is None else next_steps(content.run)


# Only the latest measurements and repairs are shown.
MOST_IMPACTS, MOST_REPAIRS = 3, 2
STATES = {True: "verified", False: "NOT VERIFIED", None: "not verified: the verification was switched off"}


def notes(content: RunContent) -> list[str]:
    """Return what a reader should know before relying on the run."""
    if content.run is None:
        return list(content.missing)
    found = []
    if len(content.tokens) < content.record.model.available:
        found.append(
            f"only {len(content.tokens):,} of {content.record.model.available:,} available tokens were "
            "examined: the others may be sticky too"
        )
    found += [*content.method.notes(content.run), *content.missing]
    impacts, repairs = content.impacts, content.repairs
    for impact in impacts[:MOST_IMPACTS]:
        found += [f"impact: {name} was not measured: {reason}" for name, reason in impact.failed.items()]
    if len(impacts) > MOST_IMPACTS:
        found.append(
            f"only the latest {MOST_IMPACTS} of {len(impacts)} impact measurements "
            "in the run folder are shown"
        )
    for record in repairs[:MOST_REPAIRS]:
        checks = [] if record.verification is None else record.verification.checks
        failed = [check for check in checks if not check.passed]
        start = f"repair {record.identity[:12]}"
        found += [f"{start}: {check.name} FAILED: {check.finding}" for check in failed]
    if repairs and repairs[0].verified:
        found.append(
            f"a repaired copy of the model was written on {repairs[0].started[:10]} and verified: encode "
            "your documents with it"
        )
    if len(repairs) > MOST_REPAIRS:
        found.append(f"only the latest {MOST_REPAIRS} of {len(repairs)} repairs are shown")
    return found


def run_details(content: RunContent) -> dict[str, dict[str, Any]]:
    """Return model, corpus, settings, versions and timing of the run, in groups."""
    record = content.record
    model = record.model.model_dump()
    if loading := model.get("loading"):  # only what was set
        model["loading"] = {name: value for name, value in loading.items() if value not in (None, "", False)}
    encoder = record.identity_parts.get("encoder")
    groups: dict[str, dict[str, Any]] = {
        "model": model | (encoder if isinstance(encoder, dict) else {}),
        "corpus": record.corpus.model_dump(),
        "result": {} if record.result is None else record.result.model_dump(),
        "settings": dict(record.settings),
        "plan": {} if content.plan is None else content.method.plan_facts(content.plan),
        "vocabulary": (
            {} if content.vocabulary is None else dict(Counter(content.vocabulary["category"]).most_common())
        ),
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
    groups |= impact_details(content.impacts) | _repair_details(content.repairs)
    return {name: values for name, values in groups.items() if values}


def impact_details(impacts: tuple[Impact, ...]) -> dict[str, dict[str, Any]]:
    return {
        f"impact {impact.path.name}": {
            **impact.record.settings,
            **{
                f"{kind} tokens": tokens
                for kind in ("sticky", "named", "benign")
                if (tokens := [each.token for each in impact.record.tokens if each.kind == kind])
            },
            "texts": impact.result.sequences,
            "seconds": impact.result.seconds,
            **{f"texts cut, {task.name}": task.cut for task in impact.result.tasks if task.cut},
        }
        for impact in impacts[:MOST_IMPACTS]
    }


def _repair_details(repairs: tuple[RepairRecord, ...]) -> dict[str, dict[str, Any]]:
    return {
        f"repair {record.identity[:12]}": {
            "state": STATES[record.verified],
            "strategy": record.strategy,
            "tokens": len(record.tokens),
            **repair_checks(record),
            "seconds": record.seconds,
            "started": record.started,
        }
        for record in repairs[:MOST_REPAIRS]
    }


def repair_checks(record: RepairRecord) -> dict[str, str]:
    """Return what the verification of a repair found, by check."""
    checks = [] if record.verification is None else record.verification.checks
    return {check.name: f"{'' if check.passed else 'FAILED: '}{check.finding}" for check in checks}


_FIRST = (Column("token", "token"), Column("verdict", "verdict"))
_LAST = (Column("entry", "entry"), Column("script", "script"), Column("token_id", "id"))


def columns(content: RunContent) -> tuple[Column, ...]:
    """Return the columns of a table of tokens; those of the method are in the middle."""
    return (*_FIRST, *content.method.reported, *_LAST)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of tokens with `sd`, their lift beyond an ordinary token's."""
    return [] if tokens.is_empty() else tokens.with_columns(sd=deviations(content.scale)).to_dicts()


@dataclass(frozen=True)
class Card:
    row: dict[str, Any]  # of the table of tokens, with ``sd``
    # Its interval on the scale of all cards, in percent: low, value, high and the ordinary token; None if
    # there is no interval
    strip: dict[str, float] | None
    # What it did to pairs of texts, the typical and the largest change: which of them, anchor, carrier,
    # copies, similarity before and after; empty if the run holds none
    pairs: list[dict[str, Any]]


def cards(content: RunContent, tokens: pl.DataFrame | None = None) -> list[Card]:
    """Return cards of tokens; without them, of the worst sticky ones or else of those that rank highest."""
    rows = rows_of(content, _worst_tokens(content) if tokens is None else tokens)
    pairs: dict[int, list[dict[str, Any]]] = {}
    if content.evidence is not None:
        copies = content.evidence.record.pair_copies
        for own in content.evidence.tokens.to_dicts():
            pairs[own["token_id"]] = [
                {
                    "which": which,
                    "anchor": own[f"{which}_anchor"],
                    "carrier": own[f"{which}_carrier"],
                    "copies": copies,
                    "before": own[f"{which}_before"],
                    "after": own[f"{which}_after"],
                }
                for which in ("typical", "largest")
                if own[f"{which}_before"] is not None
            ]
    strips = _strips(content.scale, rows)
    return [Card(row, strip, pairs.get(row["token_id"], [])) for row, strip in zip(rows, strips, strict=True)]


def _worst_tokens(content: RunContent) -> pl.DataFrame:
    """Return the worst sticky tokens; if none is sticky, the three that rank highest."""
    if content.run is None:
        return content.tokens
    if len(content.sticky):
        return content.sticky.head(MOST_CARDS)
    ranked = content.method.ranked_by.key
    known = content.tokens.filter(pl.col(ranked).is_not_null())
    return known.sort(ranked, "token_id", descending=[True, False]).head(3)


def _strips(scale: Scale | None, rows: list[dict[str, Any]]) -> list[dict[str, float] | None]:
    if scale is None or not rows or any(row.get("lift_low") is None for row in rows):
        return [None] * len(rows)
    low = min(0.0, scale.ordinary, *(row["lift_low"] for row in rows))
    high = max(scale.ordinary, *(row["lift_high"] for row in rows))
    span = float(high - low) or 1.0
    return [
        {
            name: round(2 + 96 * float(value - low) / span, 2)
            for name, value in (
                ("low", row["lift_low"]),
                ("value", row["lift"]),
                ("high", row["lift_high"]),
                ("ordinary", scale.ordinary),
            )
        }
        for row in rows
    ]
