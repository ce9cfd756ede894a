"""A repaired model and its record, repair.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import Field

import stickytoken.measurement as store
from stickytoken.data.documents import Document, NamedColumns, open_documents
from stickytoken.data.rows import Meter
from stickytoken.encoders import Encoder
from stickytoken.encoders.files.resolution import resolve_model, user_tokenizer
from stickytoken.encoders.inputs.lengths import NO_LIMIT
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError, RunError, reading
from stickytoken.measurement import resume
from stickytoken.repairs.model_folder import repairable
from stickytoken.settings.reading import ColumnChoice, columns_of
from stickytoken.settings.repair import Strategy
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


REPAIR_SCHEMA_VERSION = 3
REPAIR_FILE = "repair.json"
DOCUMENT_FILE = "REPAIR.md"


# Strategies that write new rows, the most successful first.
ROWS = (Strategy.RELATIVES, Strategy.NEAREST)
# Strategies that change how text is tokenized.
TOKENIZER = (Strategy.UNREACHABLE, Strategy.PLAIN_SPECIALS)


class MeasuredRecord(resume.Record):
    """The effect of copies of a token, measured again, in the units of the rule."""

    # In how many times as many wrong results a document with eight copies is. Null if there are no documents.
    push: float | None
    # Erased share: how much less of a text's meaning copies of this token leave than copies of an ordinary
    # token do. Null if the tokenizer splits each copy into several pieces: a longer
    # insertion erases more, whatever its tokens are, so the share would say nothing about the token.
    erased: float | None
    # Share of the queries that still find the document that answers them, with eight copies in it. Null if
    # there are no documents.
    found: float | None
    verdict: str


class CurveRecord(resume.Record):
    """Mean similarity of unrelated text pairs, for several numbers of copies in one text of each pair."""

    copies: list[int]
    before: list[float]
    after: list[float]
    ordinary: list[float]


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
    curve: CurveRecord | None = None


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
    anchors: int  # number of texts with which the carriers were compared
    source: str  # where the texts come from; the run used none of these carriers and anchors
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
        return {True: "verified", False: "NOT VERIFIED", None: "not verified"}[self.verified]


# Number of documents that are tokenized at a time.
_BATCH = 1000


@dataclass(frozen=True)
class Affected:
    """The documents whose vectors a repair changes.

    Attributes:
        file: path of a Parquet file with one row per affected document.
        documents: number of documents that were checked.
        count: number of affected documents.
    """

    file: str
    documents: int
    count: int


def require_documents(path: Path | None, column: ColumnChoice) -> None:
    """Raise an InputError if the file of documents cannot be used, or a column is named without a file."""
    if path is not None:
        open_documents(path, NamedColumns(column))
    elif columns_of(column).names:
        names = ", ".join(columns_of(column).names)
        raise InputError(f"--column {names!r} is given without --affected: pass --affected too")


def find_affected_in(path: Path, column: ColumnChoice, repair: Repair, original: Encoder) -> Affected:
    """Find the documents in a file that a repair affects, and list them in a file beside the repaired model.

    Args:
        path: file of documents.
        column: the column with the texts of the documents; if None, the column is chosen by its name.
        repair: the repair.
        original: the model before the repair.

    Returns:
        The path of the list file, the number of checked documents, and the number of affected ones.
    """
    texts = []
    ids = []
    for record in open_documents(path, NamedColumns(column)).read(Meter()):
        if isinstance(record, Document):
            texts.append(record.text)
            ids.append(record.id)
        else:
            texts.append("")
            ids.append(record.place)
    folder = repairable(require_ids(original, "repair")).folder
    affected = repair.affected(texts, folder, ids)
    name = f"{repair.path.name}-affected.parquet"
    store.ResultFolder(repair.path.parent).write_table(name, affected)
    return Affected(str(repair.path.parent / name), len(texts), len(affected))


def _batches(texts: Iterable[str], ids: Iterable[str] | None) -> Iterator[list[tuple[str, str | None]]]:
    every_id: Iterable[str | None] = repeat(None) if ids is None else ids
    named_texts = zip(texts, every_id, strict=ids is not None)
    try:
        while batch := list(islice(named_texts, _BATCH)):
            yield batch
    except ValueError as error:
        # With strict=True, zip raises this error if the numbers of texts and ids differ.
        raise RepairError(f"the numbers of names and documents differ: {error}") from error


def _tokenize_function(folder: Path, route: str | None) -> Callable[[Sequence[str]], list[list[int]]]:
    from tokenizers import Tokenizer

    tokenizer = user_tokenizer(folder, str(folder), route=route)

    def ids_by_tokenizers(texts: Sequence[str]) -> list[list[int]]:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def ids_by_transformers(texts: Sequence[str]) -> list[list[int]]:
        length = tokenizer.model_max_length
        options = {"truncation": True, "max_length": int(length)} if length < NO_LIMIT else {}
        ids: list[list[int]] = tokenizer(list(texts), **options)["input_ids"]
        return ids

    return ids_by_tokenizers if isinstance(tokenizer, Tokenizer) else ids_by_transformers


# Name prefix of the folders, inside a run folder, that hold the record of a repair.
REPAIR = "repair"


class Repair:
    """A repaired model and its measurements.

    Args:
        path: folder of the model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.

    Examples:
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, verify=False)
        >>> repaired.verified is None
        True
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
        """Whether the repair passed all checks; None if the verification was switched off."""
        return self.record.verified

    @cached_property
    def model(self) -> SentenceTransformer:
        """The repaired model, loaded with sentence-transformers."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(self.path))

    @property
    def tokens(self) -> pl.DataFrame:
        """One row per repaired token: its repair, with measurements before and after the repair."""
        return pl.DataFrame(token_rows(self.record), infer_schema_length=None)

    def affected(
        self,
        texts: Iterable[str],
        original: str | Path,
        ids: Iterable[str] | None = None,
        *,
        revision: str | None = None,
    ) -> pl.DataFrame:
        """Find the documents whose vectors the repair changes, and which must therefore be encoded again.

        If the model has several routes, only vectors on the repaired route are considered.

        Args:
            texts: the documents, read one batch at a time.
            original: name or folder of the model before the repair.
            ids: names of the documents; None if they have no names.
            revision: for a model on the hub, the branch, tag or commit that was repaired.

        Returns:
            One row per affected document: its ``index`` in the texts, its name (``id``, if ``ids`` was
            passed), and the ids of the repaired tokens in it (``tokens``).

        Raises:
            RepairError: the numbers of names and documents differ.
        """
        original_folder = Path(resolve_model(str(original), revision).location)
        route = self.record.settings.get("route")
        tokenize_before = _tokenize_function(original_folder, route)
        tokenize_after = _tokenize_function(self.path, route)
        prompt = str(self.record.identity_parts.get("encoder", {}).get("prompt", ""))
        unreached = {token.token_id for token in self.record.tokens if token.strategy in TOKENIZER}
        with_new_rows = {token.token_id for token in self.record.tokens} - unreached
        rows = []
        index = 0
        for batch in _batches(texts, ids):
            inputs = [prompt + text for text, _name in batch]
            before = tokenize_before(inputs)
            after = tokenize_after(inputs)
            for (_text, name), old_ids, new_ids in zip(batch, before, after, strict=True):
                repaired_ids = with_new_rows & set(new_ids)
                if old_ids != new_ids or repaired_ids:
                    no_longer_read = Counter(old_ids) - Counter(new_ids)
                    repaired_ids |= unreached & no_longer_read.keys()
                    rows.append({"index": index, "id": name, "tokens": sorted(repaired_ids)})
                index += 1
        schema: dict[str, Any] = {"index": pl.UInt32, "id": pl.String, "tokens": pl.List(pl.UInt32)}
        frame = pl.DataFrame(rows, schema=schema)
        return frame if ids is not None else frame.drop("id")

    def summary(self) -> dict[str, Any]:
        """Return the repair as JSON values."""
        return {"repair": str(self.path), "verified": self.verified, **self.record.model_dump()}


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
            row[f"erased_{side}"] = None if measured is None else measured.erased
            row[f"push_{side}"] = None if measured is None else measured.push
            row[f"found_{side}"] = None if measured is None else measured.found
            row[f"verdict_{side}"] = None if measured is None else measured.verdict
        rows.append(row)
    return rows


def open_repair(path: str | Path) -> Repair:
    """Open a repaired model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.

    Examples:
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, verify=False)
        >>> stickytoken.open_repair("repaired").path.name
        'repaired'
    """
    return Repair(file_path("the repair", path))


def require_empty_or_repair(out: Path) -> None:
    """Raise a RunError if the folder cannot be written, or contains something other than a repaired model."""
    store.require_writable(out)
    with reading(out, RunError):
        taken = out.is_dir() and any(out.iterdir()) and not (out / REPAIR_FILE).is_file()
    if taken:
        raise RunError(f"{out} contains files but no repaired model: choose an empty or new folder")


def finished_repair(folder: Path) -> RepairRecord | None:
    """Read the record of the repaired model in a folder; None if there is no repaired model."""
    return store.ResultFolder(folder).read_record(REPAIR_FILE, RepairRecord, REPAIR_SCHEMA_VERSION, "repair")


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
    return resume.measurements_in(
        run, pattern, lambda folder: Repair(folder).record, "A repair", lambda record: record.started
    )
