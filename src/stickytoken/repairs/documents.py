"""List the documents of a file that must be encoded again after a repair."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.corpora.files import all_texts
from stickytoken.corpora.tables import TABLE_SUFFIXES
from stickytoken.encoders import Encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs._workshop import repairable
from stickytoken.repairs.result import Repair

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
    """Refuse a file of documents that cannot be read, before a model is loaded.

    Raises:
        InputError: it is missing or of an unknown kind, or a column is named without a file.
    """
    if path is None:
        if column is not None:
            raise InputError(f"--column {column!r} is given without --affected: pass --affected too")
        return
    if not path.expanduser().is_file():
        raise InputError(f"there is no file {str(path)!r}: pass a file with the documents of an index")
    if path.suffix.lower() not in (".txt", *TABLE_SUFFIXES):
        raise InputError(f"{path} has the ending {path.suffix!r}: use .txt, {', '.join(TABLE_SUFFIXES)}")


def affected_in(path: Path, column: str | None, repair: Repair, original: Encoder) -> Affected:
    """Find the affected documents of a file, and write them beside the repaired model.

    Args:
        path: txt with one document per line, or a table.
        column: column with the texts; None finds it by name.
        repair: the repair.
        original: the model before the repair, as it was given to the repair.

    Raises:
        InputError: the file or the column cannot be used.
        RunError: the result cannot be written.
    """
    texts, others = all_texts(path.expanduser(), column)
    named = None if others is None else next((name for name in _NAMES if name in others.columns), None)
    names = None if others is None or named is None else others[named].cast(pl.String).to_list()
    _, folder = repairable(require_ids(original, "repair"))
    found = repair.affected([text or "" for text in texts], folder, names)
    name = f"{repair.path.name}-affected.parquet"
    ResultFolder(repair.path.parent).write_table(name, found)
    return Affected(str(repair.path.parent / name), len(texts), len(found))
