"""repair.json: the record of a repair, in the folder of the repaired model and in that of the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from stickytoken.errors import RunError, reading
from stickytoken.measurement import resume, store
from stickytoken.methods.measures import ERASED, PUSH
from stickytoken.settings.repair import Strategy
from stickytoken.words import percent

REPAIR_SCHEMA_VERSION = 4
REPAIR_FILE = "repair.json"
DOCUMENT_FILE = "REPAIR.md"
# Name prefix of the folders, inside a run folder, that hold the record of a repair.
REPAIR = "repair"


# Strategies that write new rows, the most successful first.
ROW_STRATEGIES = (Strategy.RELATIVES, Strategy.NEAREST)
# Strategies that change how text is tokenized.
TOKENIZER_STRATEGIES = (Strategy.UNREACHABLE, Strategy.PLAIN_SPECIALS)


class MeasuredRecord(resume.Record):
    """The effect of copies of a token, measured again, in the units of the rule."""

    # In how many times as many wrong results a document with eight copies is. Null if there are no documents.
    push: float | None
    # Erased share: how much less of a text's meaning copies of this token leave than copies of an ordinary
    # token do. Null if the tokenizer splits each copy into several pieces: a longer insertion erases more,
    # whatever its tokens are, so the share would say nothing about the token.
    erased: float | None
    # Share of the queries that still find the document that answers them, with eight copies in it. Null if
    # there are no documents.
    found: float | None
    verdict: str

    def in_words(self) -> str:
        """Return the measures that decide in words, such as "35% erased, push 0.8×"."""
        phrases = []
        if self.erased is not None:
            phrases.append(f"{ERASED.text(self.erased)} erased")
        if self.push is not None:
            phrases.append(f"push {PUSH.text(self.push)}")
        if self.erased is None and self.found is not None:
            phrases.append(f"found by {percent(self.found)} of queries")
        return ", ".join(phrases)


class TriedRecord(resume.Record):
    """A repair that was tried for a token, and the effect of copies after this repair."""

    strategy: str
    push: float | None  # as in `MeasuredRecord`
    erased: float | None


class RepairedTokenRecord(resume.Record):
    token_id: int
    token: str
    text: str
    strategy: str
    reason: str
    # tokens into which the text is split after the repair; empty if the repair does not change the tokenizer
    pieces: list[str]
    tried: list[TriedRecord] = Field(default_factory=list)
    before: MeasuredRecord | None = None
    after: MeasuredRecord | None = None


class NeighbourRecord(resume.Record):
    token_id: int
    token: str
    near: str  # Vocabulary string of the repaired token with a similar row.
    in_run: str | None  # Verdict of the run on the neighbour; null if the neighbour has none.
    before: MeasuredRecord
    after: MeasuredRecord


class ScoreRecord(resume.Record):
    task: str
    metric: str
    texts: int
    before: float
    after: float


class CheckRecord(resume.Record):
    name: str
    passed: bool
    finding: str  # what the check found, in one sentence


class VerificationRecord(resume.Record):
    """The measurements and checks of a repaired model."""

    ordinary_push: float | None  # push of an ordinary token
    found_without: float | None  # share of the queries that find their document without copies
    ordinary_contraction: float  # share of a text that copies of the ordinary token erase, from 0 to 1
    smallest_erased: float  # threshold of the rule on the erased share
    smallest_push: float  # threshold of the rule on the push
    vectors_compared: bool  # whether the rule on unusual vectors applied
    carriers: int  # number of texts into which copies were inserted
    source: str  # where the texts come from; the run used none of these carriers
    neighbours: list[NeighbourRecord]
    scores: list[ScoreRecord]
    checks: list[CheckRecord]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class RepairRecord(resume.MeasurementRecord):
    """repair.json: what was done to a model, and whether it was verified."""

    schema_version: int = REPAIR_SCHEMA_VERSION
    model: str  # Name of the model, without its organisation.
    run: str  # Identity of the run.
    strategy: str  # The requested strategy.
    settings: dict[str, Any]
    tokens: list[RepairedTokenRecord]
    verification: VerificationRecord | None  # null if verification was switched off
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    seconds: float

    @property
    def verified(self) -> bool | None:
        """Whether all checks passed; None if the verification was switched off."""
        return None if self.verification is None else self.verification.passed

    @property
    def state(self) -> str:
        """The outcome of the verification in words."""
        if self.verified is None:
            return "not verified"
        return "verified" if self.verified else "NOT VERIFIED"


def token_rows(record: RepairRecord) -> list[dict[str, Any]]:
    """Return one row per repaired token; numbers that were not measured are None."""
    rows = []
    for token in record.tokens:
        row: dict[str, Any] = {
            "token_id": token.token_id,
            "token": token.token,
            "strategy": token.strategy,
            "reason": token.reason,
        }
        for side, measured in (("before", token.before), ("after", token.after)):
            values = {} if measured is None else measured.model_dump()
            for name in ("erased", "push", "found", "verdict"):
                row[f"{name}_{side}"] = values.get(name)
        rows.append(row)
    return rows


def require_empty_or_repair(out: Path) -> None:
    """Raise a RunError if the folder cannot be written, or contains something other than a repaired model."""
    store.require_writable(out)
    with reading(out, RunError):
        holds_files = out.is_dir() and any(out.iterdir())
        holds_repair = (out / REPAIR_FILE).is_file()
    # The model is built beside the folder, and replaces it at the end. Neither a link nor a mount point (such
    # as the volume of a container) can be replaced, and whoever is in a folder stays in the replaced one.
    kind = None
    if out.is_symlink():
        kind = "a link"
    elif os.path.ismount(out):
        kind = "a mount point"
    elif out.resolve() == Path.cwd():
        kind = "the current folder"
    if kind is not None and not holds_repair:
        raise RunError(f"{out} is {kind}, which a new folder cannot replace: choose a folder inside it")
    if holds_files and not holds_repair:
        raise RunError(f"{out} contains files but no repaired model: choose an empty or new folder")


def finished_repair(folder: Path) -> RepairRecord | None:
    """Read the record of the repaired model in a folder; None if there is no repaired model."""
    return store.ResultFolder(folder).read_record(REPAIR_FILE, RepairRecord, REPAIR_SCHEMA_VERSION, "repair")


def read_repair(folder: Path) -> RepairRecord:
    """Read the record of the repaired model in a folder; raise a RunError if there is none."""
    record = finished_repair(folder)
    if record is None:
        raise RunError(f"there is no repaired model in {str(folder)!r}: it has no {REPAIR_FILE}")
    return record


def keep_copy(run: Path, record: RepairRecord) -> None:
    """Write a copy of the record into the folder of the run."""
    folder = run / store.folder_name(REPAIR, record.identity)
    store.make_folder(folder)
    store.ResultFolder(folder).write_record(REPAIR_FILE, record)


def last_verified(records: Sequence[RepairRecord]) -> str | None:
    """Return the date of the newest repair; None if it is not verified, or there are no repairs.

    Args:
        records: the records of repairs, newest first.
    """
    if not records or not records[0].verified:
        return None
    return records[0].started[:10]  # the date part of an ISO timestamp


def repairs_in(run: Path) -> tuple[tuple[RepairRecord, ...], tuple[str, ...]]:
    """Return the records of repairs in a run folder, newest first, and a message for each unreadable one."""
    pattern = f"{REPAIR}-*/{REPAIR_FILE}"
    return resume.measurements_in(run, pattern, read_repair, "A repair", lambda record: record.started)
