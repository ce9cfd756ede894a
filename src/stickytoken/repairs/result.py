"""A repaired model and its record, repair.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import Field

import stickytoken.measurement as store
from stickytoken.data.tables import TABLE_SUFFIXES, all_texts
from stickytoken.encoders import Encoder
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError, RunError, reading
from stickytoken.measurement import resume
from stickytoken.repairs import tokenizer_edit
from stickytoken.repairs.model_folder import repairable
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_NAMES = ("id", "_id", "doc_id", "document_id")
_BATCH = 1000


@dataclass(frozen=True)
class Affected:
    file: str  # Parquet, one row per affected document
    documents: int  # that were looked at
    count: int  # of affected ones


def require_documents(path: Path | None, column: str | None) -> None:
    if path is None:
        if column is not None:
            raise InputError(f"--column {column!r} is given without --affected: pass --affected too")
        return
    if not path.expanduser().is_file():
        raise InputError(f"there is no file {str(path)!r}: pass a file with the documents of an index")
    if path.suffix.lower() not in (".txt", *TABLE_SUFFIXES):
        raise InputError(f"{path} has the ending {path.suffix!r}: use .txt, {', '.join(TABLE_SUFFIXES)}")


def affected_in(path: Path, column: str | None, repair: Repair, original: Encoder) -> Affected:
    texts, others = all_texts(path.expanduser(), column)
    columns = [] if others is None else [others[name] for name in _NAMES if name in others.columns]
    names = columns[0].cast(pl.String).to_list() if columns else None
    _, folder = repairable(require_ids(original, "repair"))
    affected = repair.affected([text or "" for text in texts], folder, names)
    name = f"{repair.path.name}-affected.parquet"
    store.ResultFolder(repair.path.parent).write_table(name, affected)
    return Affected(str(repair.path.parent / name), len(texts), len(affected))


def _batches(texts: Iterable[str], ids: Iterable[str] | None) -> Iterator[list[tuple[str, str | None]]]:
    named = iter(zip(texts, repeat(None) if ids is None else ids, strict=ids is not None))
    try:
        while batch := list(islice(named, _BATCH)):
            yield batch
    except ValueError as error:  # one of them ended first
        raise RepairError(f"there are not as many names as documents: {error}") from error


def _encoder(pipeline: tokenizer_edit.Pipeline) -> Callable[[Sequence[str]], list[list[int]]]:
    if (tokenizer := pipeline.tokenizer) is not None:
        length = tokenizer_edit.read_object(pipeline.folder / "sentence_bert_config.json")
        length = length.get("max_seq_length") or tokenizer.model_max_length
        cut = {"truncation": True, "max_length": int(length)} if length and length < 10**9 else {}
        return lambda texts: tokenizer(list(texts), **cut)["input_ids"]
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(pipeline.loaded))
    return lambda texts: [each.ids for each in backend.encode_batch(list(texts), add_special_tokens=False)]


REPAIR_SCHEMA_VERSION = 1
REPAIR_FILE = "repair.json"
DOCUMENT_FILE = "REPAIR.md"
PICTURE_FILE = "repair.svg"


class Strategy(StrEnum):
    AUTO = "auto"  # chosen for each token
    UNREACHABLE = "unreachable"  # text no longer produces the entry: it falls into its pieces
    PLAIN_SPECIALS = "plain-specials"  # as a user writes it, it is plain text; the model's own stay
    RELATIVES = "relatives"  # a row made from those of its pieces and of entries with similar spelling
    KEEP_MEANING = "keep-meaning"  # one copy does what it did; many act as those of an ordinary token
    NEAREST = "nearest"  # the row of the nearest entry that lifts and erases no more than the typical one


# Strategies that write new rows, the best first; benchmarks/results/README.md compares them.
ROWS = (Strategy.RELATIVES, Strategy.KEEP_MEANING, Strategy.NEAREST)
# Strategies that change how text is tokenized.
TOKENIZER = (Strategy.UNREACHABLE, Strategy.PLAIN_SPECIALS)


class MeasuredRecord(resume.Record):
    lift: float
    deviations: float  # lift beyond an ordinary token's, in standard deviations of the model's similarities
    contraction: float | None = None  # share of a text's meaning that 8 copies take
    verdict: str | None = None  # null where the token was measured but not judged


class CurveRecord(resume.Record):
    copies: list[int]
    before: list[float]
    after: list[float]
    ordinary: list[float]


class TriedRecord(resume.Record):
    strategy: str
    deviations: float


class RepairedTokenRecord(resume.Record):
    token_id: int
    token: str
    text: str
    strategy: str
    reason: str
    pieces: list[str]  # what its text is tokenized to now; empty if it is unchanged
    tried: list[TriedRecord] = Field(default_factory=list)
    before: MeasuredRecord | None = None
    after: MeasuredRecord | None = None
    curve: CurveRecord | None = None


class NeighbourRecord(resume.Record):
    token_id: int
    token: str
    near: str  # the repaired token
    in_run: str | None  # verdict of the run
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
    finding: str  # one sentence


class VerificationRecord(resume.Record):
    ordinary_lift: float
    similarity_spread: float
    ordinary_contraction: float
    carriers: int
    anchors: int
    source: str  # where the texts come from; none of them was used by the run
    neighbours: list[NeighbourRecord]
    scores: list[ScoreRecord]
    checks: list[CheckRecord]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class RepairRecord(resume.MeasurementRecord):
    schema_version: int = REPAIR_SCHEMA_VERSION
    model: str  # last part of the name of the model
    run: str  # identity of the run
    strategy: str  # as asked for
    settings: dict[str, Any]
    tokens: list[RepairedTokenRecord]
    verification: VerificationRecord | None  # null if it was switched off
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    seconds: float

    @property
    def verified(self) -> bool | None:
        return None if self.verification is None else self.verification.passed

    @property
    def state(self) -> str:
        return {True: "verified", False: "NOT VERIFIED", None: "not verified"}[self.verified]


REPAIR = "repair"  # prefix of the folders in a run folder that hold the record of a repair


class Repair:
    """A repaired model and its measurements.

    Args:
        path: folder of the model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.
    """

    def __init__(self, path: Path) -> None:
        record = finished_repair(path)
        if record is None:
            raise RunError(f"there is no repaired model in {str(path)!r}: it has no {REPAIR_FILE}")
        self.path = path
        self.record = record

    def __repr__(self) -> str:
        tokens = f"{len(self.record.tokens)} tokens, {self.record.state}"
        return f"<Repair: {self.record.model}, {tokens}, in {self.path}>"

    @property
    def verified(self) -> bool | None:
        """Whether the repair was verified; None if the verification was switched off."""
        return self.record.verified

    @cached_property
    def model(self) -> SentenceTransformer:
        """The repaired model, loaded as anyone would load it."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(self.path))

    @property
    def tokens(self) -> pl.DataFrame:
        """One row per repaired token: strategy and reason, lift and contraction before and after."""
        return pl.DataFrame(token_rows(self.record), infer_schema_length=None)

    def affected(
        self,
        texts: Iterable[str],
        original: str | Path,
        ids: Iterable[str] | None = None,
        *,
        revision: str | None = None,
    ) -> pl.DataFrame:
        """Find the documents whose vectors the repair changes: those must be encoded again.

        Args:
            texts: the documents, read one batch at a time.
            original: name or folder of the model before the repair.
            ids: names of the documents; None for none.
            revision: branch, tag or commit of a model on the hub; the one that was repaired.

        Returns:
            One row per affected document: index, id if there are names, and the ids of its repaired tokens.

        Raises:
            RepairError: there are not as many names as documents.
        """
        folders = Path(resolve_model(str(original), revision).location), self.path
        before, after = (_encoder(tokenizer_edit.read_pipeline(folder)) for folder in folders)
        prompt = str(self.record.identity_parts.get("encoder", {}).get("prompt", ""))
        gone = {token.token_id for token in self.record.tokens if token.strategy in TOKENIZER}
        new_rows = {token.token_id for token in self.record.tokens} - gone
        rows = []
        for number, batch in enumerate(_batches(texts, ids)):
            inputs = [prompt + text for text, _ in batch]
            encoded = zip(batch, before(inputs), after(inputs), strict=True)
            for index, ((_, name), old, new) in enumerate(encoded, number * _BATCH):
                found = new_rows & set(new)
                if old != new or found:
                    found |= gone & (Counter(old) - Counter(new)).keys()
                    rows.append({"index": index, "id": name, "tokens": sorted(found)})
        schema: dict[str, Any] = {"index": pl.UInt32, "id": pl.String, "tokens": pl.List(pl.UInt32)}
        frame = pl.DataFrame(rows, schema=schema)
        return frame if ids is not None else frame.drop("id")

    def summary(self) -> dict[str, Any]:
        """Return the repair as JSON values."""
        return {"repair": str(self.path), "verified": self.verified, **self.record.model_dump()}


def token_rows(record: RepairRecord) -> list[dict[str, Any]]:
    rows = []
    for token in record.tokens:
        row = {name: getattr(token, name) for name in ("token_id", "token", "strategy", "reason")}
        for side in ("before", "after"):
            measured = getattr(token, side)
            for name in ("lift", "deviations", "contraction"):
                row[f"{name}_{side}"] = None if measured is None else getattr(measured, name)
        rows.append(row | {"verdict_after": None if token.after is None else token.after.verdict})
    return rows


def open_repair(path: str | Path) -> Repair:
    """Open a repaired model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.
    """
    return Repair(file_path("the repair", path))


def require_place(out: Path) -> None:
    store.require_writable(out)
    with reading(out, RunError):
        taken = out.is_dir() and any(out.iterdir()) and not (out / REPAIR_FILE).is_file()
    if taken:
        raise RunError(f"{out} contains files but no repaired model: choose an empty or new folder")


def finished_repair(folder: Path) -> RepairRecord | None:
    return store.ResultFolder(folder).read_record(REPAIR_FILE, RepairRecord, REPAIR_SCHEMA_VERSION)


def keep_copy(run: Path, record: RepairRecord) -> None:
    folder = run / store.folder_name(REPAIR, record.identity)
    store.make_folder(folder)
    store.ResultFolder(folder).write_record(REPAIR_FILE, record)


def last_verified(records: Sequence[RepairRecord]) -> str | None:
    return records[0].started[:10] if records and records[0].verified else None


def repairs_in(run: Path) -> tuple[tuple[RepairRecord, ...], tuple[str, ...]]:
    pattern = f"{REPAIR}-*/{REPAIR_FILE}"
    return resume.measurements_in(
        run, pattern, lambda folder: Repair(folder).record, "A repair", lambda record: record.started
    )
