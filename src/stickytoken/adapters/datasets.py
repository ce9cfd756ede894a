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
        cleaned: dict[str, list[str | None]] = {}
        notes: list[list[str]] = []
        single = False
        for column in self.columns:
            if column not in batch:
                known = ", ".join(map(str, batch)) or "none"
                raise InputError(f"there is no column {column!r}: the columns are {known}")
            single = isinstance(batch[column], str) or batch[column] is None
            cleaned[column] = list([batch[column]] if single else batch[column])
            notes = notes or [[] for _ in cleaned[column]]
            for row, value in enumerate(cleaned[column]):
                if value is not None:
                    text, note = cleaned_text(
                        self.cleaner, value, f"column {column!r}, row {row + 1:,} of the batch"
                    )
                    cleaned[column][row] = text
                    if note:
                        notes[row].append(f"{column}: {note}" if len(self.columns) > 1 else note)
        if self.note is not None:
            cleaned[self.note] = list(map("; ".join, notes))
        return {name: values[0] if single else values for name, values in cleaned.items()}
