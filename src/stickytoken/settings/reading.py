"""Settings that say which parts of a record are its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import NamedTuple, TypeAlias

from stickytoken.errors import InputError
from stickytoken.settings import check_settings


class FilledText(NamedTuple):
    """The text of a record, and the offsets in it at which the text of each column begins.

    A column that is left out has no offset, and one that a template names twice has two. White space at both
    ends of a filled template is left out, so the first offset may be negative.
    """

    text: str
    starts: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Columns:
    """Which columns contain the text of a record.

    Attributes:
        column: Column that contains the text, or a nested field such as metadata.summary. Repeatable: several
            texts are joined by a space. Default: found by name.
        template: Text made of several columns, as the index embeds it, such as '{title}. {text}'.
        delimiter: Character between the columns of a csv or tsv file. Default: a comma; a tab for tsv.
    """

    column: tuple[str, ...] | None = None
    template: str | None = None
    delimiter: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or None)  # Typer passes an empty list
        check_settings(self)
        if self.template is not None and self.column:
            raise InputError(
                f"template is {self.template!r} and column is {', '.join(self.column)}: the template names "
                "its columns, so leave column out"
            )
        if self.template is not None and not self.fields_of_template():
            raise InputError(
                f"template is {self.template!r}: name columns in braces, as in '{{title}}. {{text}}'"
            )
        if self.delimiter == "\\t":  # as a shell passes it
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise InputError(f"delimiter is {self.delimiter!r}: pass one character, such as ';'")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns with text that the user named, in order and without duplicates."""
        return tuple(dict.fromkeys(self.column or self.fields_of_template()))

    def fields_of_template(self) -> tuple[str, ...]:
        """Return the columns that the template names; empty if there is no template."""
        return tuple(field for _, field in self._split_template() if field)

    def fill(self, texts: dict[str, str]) -> FilledText:
        """Return the text of a record, and where in it the text of each column begins.

        ``texts`` is keyed by column. A column of the template that is not in ``texts`` is left out, and so is
        white space at both ends of a filled template.
        """
        if self.template is not None:
            pieces = self._split_template()
        else:
            # Blank texts are not joined to others. A single text stays as it is in the file, even if it is
            # blank.
            to_join = [column for column, text in texts.items() if text.strip() or len(texts) == 1]
            pieces = [("" if column == to_join[0] else " ", column) for column in to_join]
        filled = ""
        starts: dict[str, tuple[int, ...]] = dict.fromkeys(texts, ())
        for text_before, column in pieces:
            filled += text_before
            if column in texts:
                starts[column] += (len(filled),)
                filled += texts[column]
        if self.template is not None:
            leading_spaces = len(filled) - len(filled.lstrip())
            filled = filled.strip()
            for column, starts_of_column in starts.items():
                starts[column] = tuple(start - leading_spaces for start in starts_of_column)
        return FilledText(filled, starts)

    def as_options(self) -> list[str]:
        """Return the options of the command line that choose these columns."""
        options = []
        for name in self.column or ():
            options += ["--column", name]
        if self.template is not None:
            options += ["--template", self.template]
        if self.delimiter is not None:
            options += ["--set", f"delimiter={self.delimiter}"]
        return options

    def _split_template(self) -> list[tuple[str, str]]:
        """Return pairs of a text in the template and the column that follows it.

        The name of the column is empty if no column follows the last text.
        """
        if self.template is None:
            return []
        try:
            parsed = list(Formatter().parse(self.template))
        except ValueError as error:
            raise InputError(f"template is {self.template!r}: {error}") from error
        if any(format_spec or conversion for _, _, format_spec, conversion in parsed):
            raise InputError(
                f"template is {self.template!r}: write only the name of a column in braces, without ! or :"
            )
        return [(literal, field or "") for literal, field, _, _ in parsed]


ColumnChoice: TypeAlias = str | Sequence[str] | Columns | None
"""The column with the text, several columns, or `Columns`; None if the column is found by its name."""


def columns_of(choice: ColumnChoice) -> Columns:
    """Return a choice of columns as `Columns`."""
    if isinstance(choice, Columns):
        return choice
    return Columns(choice)  # type: ignore[arg-type]  # one name becomes a tuple
