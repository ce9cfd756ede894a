"""List the documents of a file that must be encoded again after a repair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.corpora.files import TABLE_SUFFIXES, all_texts
from stickytoken.encoders import Encoder
from stickytoken.encoders.loading.load import loaded_like
from stickytoken.encoders.loading.resolution import EncoderSpec, resolve_model
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.errors import InputError, RepairError, StickyTokenError
from stickytoken.measurement.atomic import move_folder
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs.model_folder import ModelEdit, write_model
from stickytoken.repairs.plan import drawn, mean_curves
from stickytoken.repairs.result import (
    CENTRE_FILE,
    DOCUMENT_FILE,
    PICTURE_FILE,
    REPAIR_FILE,
    ROWS,
    MeasuredRecord,
    Repair,
    RepairRecord,
    Strategy,
)
from stickytoken.validation import markdown, markdown_table

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


_MODEL = "model"


def repairable(encoder: IdEncoder) -> tuple[SentenceTransformerEncoder, Path]:
    """Return a model that can be repaired, and its folder."""
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    if not isinstance(encoder, SentenceTransformerEncoder):
        raise RepairError(
            f"{encoder.name} is a {type(encoder).__name__}: only models that sentence-transformers loads by "
            "itself can be repaired"
        )
    spec: EncoderSpec | None = encoder.spec
    if spec is None:
        raise RepairError(
            f"{encoder.name} was passed as an object, and a repair starts from files: pass the name or the "
            "folder of the model"
        )
    place = Path(resolve_model(spec.model, spec.revision).location)
    if not place.is_dir():
        raise RepairError(
            f"the files of {encoder.name} are not on this machine: pass the folder of the model"
        )
    return encoder, place


class Workshop:
    """Builds edited copies of a model."""

    def __init__(self, place: Path, source: Path, original: SentenceTransformerEncoder) -> None:
        self._place = place
        self._source = source
        self._original = original

    def build(self, edit: ModelEdit, name: str = _MODEL) -> Path:
        """Write an edited copy; earlier ones are removed."""
        _empty(self._place)
        target = self._place / name
        write_model(self._source, target, edit)
        return target

    def load(self, folder: Path) -> SentenceTransformerEncoder:
        """Load a copy as the original was loaded."""
        from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

        found = loaded_like(self._original, folder)
        if not isinstance(found, SentenceTransformerEncoder):
            raise RepairError(f"{folder} does not load as a SentenceTransformer")
        return found

    def finish(self, folder: Path, out: Path) -> None:
        """Put a copy in its place."""
        move_folder(folder, out)


def _empty(place: Path) -> None:
    """Remove the copies in the hidden folder, but not its lock."""
    for copy in place.iterdir():
        if copy.is_dir():
            shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def _named(place: Path, out: Path) -> Iterator[None]:
    """Let errors name the folder that the user passed instead of the hidden one."""
    try:
        yield
    except StickyTokenError as error:
        said = str(error).replace(str(place / _MODEL), str(out)).replace(str(place), str(out))
        if said == str(error):
            raise
        raise type(error)(said) from error


def _hidden(out: Path) -> Path:
    return out.absolute().with_name(f".{out.name}.repairing")


def clear_workshop(out: Path) -> None:
    """Remove the hidden folder that a process left behind when it was killed just after its last step."""
    shutil.rmtree(_hidden(out), ignore_errors=True)


@contextmanager
def workshop(out: Path, source: Path, original: SentenceTransformerEncoder) -> Iterator[Workshop]:
    """Lock the hidden folder beside ``out``, clear what a killed process left there, remove it at the end."""
    place = _hidden(out)
    with _named(place, out), ResultFolder(place).locked():
        _empty(place)
        try:
            yield Workshop(place, source, original)
        finally:
            shutil.rmtree(place, ignore_errors=True)


_NAMES = ("id", "_id", "doc_id", "document_id")


@dataclass(frozen=True)
class Affected:
    """The documents that must be encoded again.

    Attributes:
        file: Parquet file with one row per affected document.
        documents: number of documents that were looked at.
        count: number of affected ones.
    """

    file: str
    documents: int
    count: int

    def summary(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)


def require_documents(path: Path | None, column: str | None) -> None:
    """Refuse a file of documents that cannot be read, before a model is loaded."""
    if path is None:
        if column is not None:
            raise InputError(f"--column {column!r} is given without --affected: pass --affected too")
        return
    if not path.expanduser().is_file():
        raise InputError(f"there is no file {str(path)!r}: pass a file with the documents of an index")
    if path.suffix.lower() not in (".txt", *TABLE_SUFFIXES):
        raise InputError(f"{path} has the ending {path.suffix!r}: use .txt, {', '.join(TABLE_SUFFIXES)}")


def affected_in(path: Path, column: str | None, repair: Repair, original: Encoder) -> Affected:
    """Find the affected documents of a file, and write them beside the repaired model."""
    texts, others = all_texts(path.expanduser(), column)
    named = None if others is None else next((name for name in _NAMES if name in others.columns), None)
    names = None if others is None or named is None else others[named].cast(pl.String).to_list()
    _, folder = repairable(require_ids(original, "repair"))
    found = repair.affected([text or "" for text in texts], folder, names)
    name = f"{repair.path.name}-affected.parquet"
    ResultFolder(repair.path.parent).write_table(name, found)
    return Affected(str(repair.path.parent / name), len(texts), len(found))


_CARD = "README.md"
_MINUS = "\N{MINUS SIGN}"
_SHOWN_IN_CARD = 20


def write_documents(folder: Path, record: RepairRecord, centre: NDArray[np.float32] | None) -> None:
    """Write REPAIR.md and its picture, a block in the model card, the removed direction, and repair.json."""
    files = ResultFolder(folder)
    curves = mean_curves([token.curve for token in record.tokens if token.curve is not None])
    if curves is not None:
        files.write_text(PICTURE_FILE, drawn(curves))
    if centre is not None:
        direction = [float(value) for value in centre]
        files.write_text(CENTRE_FILE, json.dumps({"direction": direction}) + "\n")
    files.write_text(DOCUMENT_FILE, repair_document(record))
    card = folder / _CARD
    earlier = card.read_text("utf-8", "replace").rstrip() + "\n\n" if card.is_file() else ""
    files.write_text(_CARD, earlier + card_block(record))
    files.write_text(REPAIR_FILE, record.model_dump_json(indent=2) + "\n")


def card_block(record: RepairRecord) -> str:
    """Return a section for the model card."""
    names = [markdown(token.token) for token in record.tokens[:_SHOWN_IN_CARD]]
    more = len(record.tokens) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    return (
        "## Repaired tokens\n\n"
        f"**{_headline(record)}** Copies of a sticky token in a text pull its vector toward those of "
        f"unrelated texts. Repaired: {listed}. What was done, and what was measured before and after, is in "
        f"[{DOCUMENT_FILE}]({DOCUMENT_FILE}) and `{REPAIR_FILE}`, written by stickytoken.\n"
    )


def repair_document(record: RepairRecord) -> str:
    """Return REPAIR.md."""
    parts = [
        f"# Repair of {markdown(record.model)}",
        f"**{_headline(record)}**",
        _what_changed(record),
        "## What to encode again",
        _what_to_encode(record),
        *_checks(record),
        "## The tokens",
        _tokens(record),
        *_curves(record),
        *_scores(record),
    ]
    if record.notes:
        parts += ["## Notes", "\n".join(f"- {markdown(note)}" for note in record.notes)]
    return "\n\n".join(parts) + "\n"


def _headline(record: RepairRecord) -> str:
    count = len(record.tokens)
    tokens = "1 token" if count == 1 else f"{count} tokens"
    if record.verified is None:
        return f"{tokens} repaired. NOT VERIFIED: the verification was switched off."
    if record.verified:
        return f"{tokens} repaired and verified."
    return f"{tokens} changed. NOT VERIFIED: the repaired model did not pass every check. Do not rely on it."


def _what_changed(record: RepairRecord) -> str:
    said = {
        Strategy.UNREACHABLE: "no longer produced by text, which is split into pieces; ids are unchanged",
        Strategy.PLAIN_SPECIALS: "plain text when a user writes them; the model's own are kept",
        Strategy.PIECES: "given the mean row of their pieces",
        Strategy.RELATIVES: "given a row made from entries with similar spelling",
        Strategy.DISTIL: "given a row that acts like their pieces",
        Strategy.KEEP_MEANING: "given a row that keeps the meaning of one copy; many act like ordinary ones",
        Strategy.COLLAPSE: "cut to two copies by the tokenizer, like every repeated word",
        Strategy.CENTRE: "unchanged; the mean direction is removed from every vector",
    }
    lines = []
    for strategy, what in said.items():
        own = [token for token in record.tokens if token.strategy == strategy]
        if own:
            lines.append(f"- {len(own)} {'token' if len(own) == 1 else 'tokens'} ({strategy}): {what}")
    return "\n".join(lines)


def _checks(record: RepairRecord) -> list[str]:
    if record.verification is None:
        return []
    rows = [
        [check.name, "passed" if check.passed else "**FAILED**", markdown(check.finding)]
        for check in record.verification.checks
    ]
    found = record.verification
    return [
        "## Checks",
        markdown_table(["check", "", "finding"], rows),
        f"Measured on {found.carriers} texts with copies in them against {found.anchors} others, from "
        f"{markdown(found.source)} and the bundled kinds of text. The detection used none of them.",
    ]


def _tokens(record: RepairRecord) -> str:
    columns = {
        "token": [markdown(token.token) for token in record.tokens],
        "strategy": [token.strategy for token in record.tokens],
        "why": [markdown(token.reason) for token in record.tokens],
        "lift before": [_deviations(token.before) for token in record.tokens],
        "lift after": [_deviations(token.after) for token in record.tokens],
        "meaning lost before": [_contraction(token.before) for token in record.tokens],
        "meaning lost after": [_contraction(token.after) for token in record.tokens],
    }
    if any(token.pieces for token in record.tokens):
        pieces = (" ".join(map(markdown, token.pieces)) for token in record.tokens)
        columns["read as"] = [each or "the same token" for each in pieces]
    table = markdown_table(list(columns), zip(*columns.values(), strict=True))
    if record.verification is None:
        return table
    ordinary = _number(record.verification.ordinary_contraction)
    return (
        f"{table}\n\nLift is given beyond an ordinary token's, in standard deviations (SD) "
        "of the model's own similarities. Meaning lost: how much copies shrink a text's differences from "
        f"others (the contraction; an ordinary token's is {ordinary})."
    )


def _deviations(measured: MeasuredRecord | None) -> str:
    return "–" if measured is None else f"{_number(measured.deviations)} SD"


def _contraction(measured: MeasuredRecord | None) -> str:
    return "–" if measured is None or measured.contraction is None else _number(measured.contraction)


def _number(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", _MINUS)  # adding 0.0 turns -0.0 into 0.0


def _curves(record: RepairRecord) -> list[str]:
    curves = mean_curves([token.curve for token in record.tokens if token.curve is not None])
    if curves is None:
        return []
    head = ["copies", *map(str, curves.copies)]
    rows = [
        [name, *(f"{value:.3f}".replace("-", _MINUS) for value in line)]
        for name, line in curves.lines.items()
    ]
    return [
        "## Before and after",
        f"![Similarity by number of copies]({PICTURE_FILE})",
        "Mean similarity of unrelated texts as copies of a repaired token are added to one of them:",
        markdown_table(head, rows),
    ]


def _scores(record: RepairRecord) -> list[str]:
    if record.verification is None or not record.verification.scores:
        return []
    rows = [
        [
            markdown(each.task),
            each.metric,
            *(_number(100 * value) for value in (each.before, each.after, each.after - each.before)),
        ]
        for each in record.verification.scores
    ]
    return ["## Scores", markdown_table(["task", "metric", "before", "after", "change"], rows)]


def _what_to_encode(record: RepairRecord) -> str:
    used = {Strategy(token.strategy) for token in record.tokens}
    if Strategy.CENTRE in used:
        return (
            "Every vector changes. Encode everything again, or remove from each stored vector its "
            f"component along the direction in `{CENTRE_FILE}`: `v - (v @ d) * d`."
        )
    which = "texts that contain a repaired token"
    if Strategy.COLLAPSE in used:
        which += ", or any word three times in a row,"
    plain = "" if used & set(ROWS) else " No weight was changed."
    return (
        f"Only {which} must be encoded again: `stickytoken repair ... --affected documents.parquet` lists "
        f"them. All other vectors of an index stay valid, bit for bit.{plain}"
    )
