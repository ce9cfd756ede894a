"""Clean columns of a Hugging Face data set with its method ``map``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stickytoken.cleaning import CleanerSource, cleaned_text, open_cleaner
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
        for column in self.columns:
            if column not in batch:
                column_names = ", ".join(map(str, batch)) or "none"
                raise InputError(f"there is no column {column!r}: the columns are {column_names}")
        is_single = {
            column: batch[column] is None or isinstance(batch[column], str) for column in self.columns
        }
        # A row has one note, even if some of its columns are lists of texts.
        is_row = any(is_single.values())
        notes: defaultdict[int, list[str]] = defaultdict(list)
        cleaned: dict[str, Any] = {}
        for column, single in is_single.items():
            values = [batch[column]] if single else list(batch[column])
            for place, value in enumerate(values):
                if value is not None:
                    where = f"column {column!r}, row {place + 1:,} of the batch"
                    values[place], note = cleaned_text(self.cleaner, value, where)
                    if note:
                        named = f"{column}: {note}" if len(self.columns) > 1 else note
                        notes[0 if is_row else place].append(named)
            cleaned[column] = values[0] if single else values
        if self.note is not None:
            rows = 1 if is_row else len(batch[self.columns[0]])
            row_notes = ["; ".join(notes[row]) for row in range(rows)]
            cleaned[self.note] = row_notes[0] if is_row else row_notes
        return cleaned
