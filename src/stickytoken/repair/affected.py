"""Which documents have to be encoded again after a repair."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.repair.model_folder import ModelEdit

if TYPE_CHECKING:
    import polars as pl


def affected_documents(
    folder: Path, edit: ModelEdit, texts: Iterable[str], ids: Iterable[str] | None = None
) -> pl.DataFrame:
    """Find the documents whose vectors a repair changes.

    A document is affected if its token ids change, or if it contains an entry with a new row. Every vector
    changes if a direction is taken out (`ModelEdit.centre`).

    Args:
        folder: The folder of the model before the repair.
        edit: The repair.
        texts: The documents, read one batch at a time.
        ids: Their names; None for none.

    Returns:
        One row per affected document: ``index``, ``id`` if there are names, and ``tokens``, the repaired
        entries that it contains.
    """
    raise NotImplementedError
