"""Clean columns of a Hugging Face data set, with its method ``map``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stickytoken.adapters import cleaned_text
from stickytoken.cleaning.cleaner import CleanerSource, open_cleaner
from stickytoken.errors import InputError
from stickytoken.validation import list_of, shown


class ColumnCleaner:
    """A function for ``dataset.map(ColumnCleaner("runs/minilm"), batched=True)``.

    Missing values stay missing. Equal cleaners have equal fingerprints, so that data sets reuse their cache.
    """

    def __init__(
        self, cleaner: CleanerSource, columns: str | Sequence[str] = "text", *, note: str | None = None
    ) -> None:
        self.cleaner = open_cleaner(cleaner)
        names = [columns] if isinstance(columns, str) else list_of("names", "columns", columns)
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(f"columns is {shown(columns)}: pass the name of a column, or a list of names")
        if note is not None and not isinstance(note, str):
            raise InputError(f"note is {shown(note)}: pass the name of a column, or None")
        self.columns = tuple(names)
        self.note = note

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cleaned columns of a batch, or of a single row."""
        cleaned: dict[str, Any] = {}
        notes: dict[int, list[str]] = {}
        single = False
        for column in self.columns:
            if column not in batch:
                known = ", ".join(map(str, batch)) or "none"
                raise InputError(f"there is no column {column!r}: the columns are {known}")
            single = isinstance(batch[column], str) or batch[column] is None
            values = [batch[column]] if single else batch[column]
            texts: list[str | None] = []
            for row, value in enumerate(values):
                if value is None:
                    texts.append(None)
                    continue
                name = f"column {column!r}, row {row + 1:,} of the batch"
                found = cleaned_text(self.cleaner, value, name)
                texts.append(found.text)
                if found.note:
                    of = f"{column}: " if len(self.columns) > 1 else ""
                    notes.setdefault(row, []).append(of + found.note)
            cleaned[column] = texts[0] if single else texts
        if self.note is not None:
            rows = 1 if single else len(cleaned[self.columns[0]])
            joined = ["; ".join(notes.get(row, ())) for row in range(rows)]
            cleaned[self.note] = joined[0] if single else joined
        return cleaned
