"""Clean columns of a Hugging Face data set by passing a `ColumnCleaner` to its ``map`` method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stickytoken.cleaning import CleanerSource, clean_text, open_cleaner
from stickytoken.errors import InputError
from stickytoken.validation import list_of, shown


class ColumnCleaner:
    """A callable to pass to ``dataset.map``: ``dataset.map(ColumnCleaner("runs/minilm"), batched=True)``.

    Missing values stay missing. Equal cleaners have equal fingerprints, so that ``map`` can reuse cached
    results.

    Args:
        cleaner: A cleaner; a run or its folder; or a file that `Cleaner.save` wrote.
        columns: Name of the column to clean, or a list of names.
        note: Name of a new column for notes on what was found. With None, no column is added.

    Raises:
        InputError: The cleaner or a column name cannot be used.
        RunError: The folder is not a run, is damaged or is not finished.
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
        """Clean a batch of rows, or a single row.

        Returns:
            The cleaned columns, and the column of notes if one was requested. Other columns are left out.

        Raises:
            InputError: There is no such column, or a value is not a text.
        """
        self._require_columns(batch)
        # In a batch, the value of every column is a list. So if a column holds a text or a missing value, the
        # argument is a single row, even if other columns hold lists of texts. A single row gets one note for
        # all columns.
        text_columns = [
            column for column in self.columns if batch[column] is None or isinstance(batch[column], str)
        ]
        is_row = bool(text_columns)
        notes_of_row: defaultdict[int, list[str]] = defaultdict(list)  # keyed by the row's index
        cleaned: dict[str, Any] = {}
        for column in self.columns:
            is_text = column in text_columns
            values = [batch[column]] if is_text else batch[column]
            texts = []
            for index, value in enumerate(values):
                text, note = self._clean_value(value, column, index)
                texts.append(text)
                if note:
                    notes_of_row[0 if is_row else index].append(note)
            cleaned[column] = texts[0] if is_text else texts
        if self.note is not None:
            row_count = 1 if is_row else len(batch[self.columns[0]])
            joined_notes = ["; ".join(notes_of_row[row]) for row in range(row_count)]
            cleaned[self.note] = joined_notes[0] if is_row else joined_notes
        return cleaned

    def _require_columns(self, batch: Mapping[str, Any]) -> None:
        for column in self.columns:
            if column not in batch:
                column_names = ", ".join(map(str, batch)) or "none"
                raise InputError(f"there is no column {column!r}: the columns are {column_names}")

    def _clean_value(self, value: Any, column: str, index: int) -> tuple[str | None, str]:
        if value is None:
            return None, ""
        text, note = clean_text(self.cleaner, value, f"column {column!r}, row {index + 1:,} of the batch")
        if note and len(self.columns) > 1:
            note = f"{column}: {note}"  # the column is named, because a row has one note for all columns
        return text, note
