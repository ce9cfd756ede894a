"""Options of `stickytoken scan`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stickytoken.cli.options.panels import computation_option, method_option, output_option, texts_option
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.corpora import Sentences


class ScanFormat(StrEnum):
    """Formats of a scan."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    SARIF = "sarif"


_BY_ENDING = {".json": ScanFormat.JSON, ".csv": ScanFormat.CSV, ".sarif": ScanFormat.SARIF}


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """Where a table has the documents."""

    column: Annotated[str | None, texts_option(help="Column with the text. Default: found by name.")] = None
    id_column: Annotated[
        str | None,
        texts_option("--id", help="Column with the id. Default: found by name."),
    ] = None
    source_column: Annotated[
        str | None,
        texts_option("--source", help="Column with the source of a document. Default: source."),
    ] = None


@dataclass(frozen=True, slots=True)
class EffectOptions:
    """Whether to say what copies do."""

    effect: Annotated[
        bool,
        method_option(
            "--effect",
            help="Measure what copies do: encode the documents with findings, with copies and without.",
        ),
    ] = False
    predict: Annotated[
        bool,
        method_option(
            "--predict",
            help="Predict what copies do from the run: encode the documents only as they are. Less exact.",
        ),
    ] = False
    queries: Annotated[
        str | None,
        method_option(
            help="Your own queries, in a file as for judge. Default: first words of clean documents."
        ),
    ] = None

    def chosen(self) -> dict[str, Any]:
        """Return the options as `scan` takes them.

        Raises:
            typer.BadParameter: They contradict each other.
        """
        if self.effect and self.predict:
            raise typer.BadParameter("use one of --effect and --predict", param_hint="--predict")
        if self.queries is not None and not (self.effect or self.predict):
            raise typer.BadParameter("it needs --effect or --predict", param_hint="--queries")
        kind = "measured" if self.effect else "predicted" if self.predict else None
        return {"effect": kind, "queries": self._queries()}

    def _queries(self) -> Sentences | None:
        from stickytoken.corpora import load_sentences

        return None if self.queries is None else load_sentences(self.queries)


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """Where results go."""

    folder: Annotated[
        Path | None,
        output_option(
            "--scan-folder",
            help="Folder of the scan, where an interrupted one continues. Default: scan-<identity> in the "
            "run folder, where report finds it.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        output_option(help="File for the results instead of stdout: .json, .csv or .sarif."),
    ] = None
    output_format: Annotated[
        ScanFormat | None,
        output_option(
            "--format",
            "-f",
            help="Print a summary with the worst documents, one JSON document, or all documents with "
            "findings as CSV or SARIF. Default: by the ending of --out, else table.",
        ),
    ] = None
    limit: Annotated[int, output_option(min=1, help="Maximum number of documents to list in a table.")] = 20

    @property
    def format(self) -> ScanFormat:
        """The requested format.

        Raises:
            InputError: A table cannot be written to a file.
        """
        if self.output_format is not None:
            found = self.output_format
        else:
            found = (
                ScanFormat.TABLE if self.out is None else _BY_ENDING.get(self.out.suffix, ScanFormat.TABLE)
            )
        if found is ScanFormat.TABLE and self.out is not None:
            raise InputError(f"--out {str(self.out)!r} names no format: end it in .json, .csv or .sarif")
        return found


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How many processes search documents."""

    workers: Annotated[
        int | None,
        computation_option(min=1, help="Number of processes that search documents. Default: one per core."),
    ] = None
