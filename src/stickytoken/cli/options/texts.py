"""Options that name tokens and texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from stickytoken.cli.options.output import (
    OUTPUT,
    TEXTS,
    computation_option,
    method_option,
    output_option,
    texts_option,
)
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.cleaning import Action, SpanKind
    from stickytoken.corpora import Sentences


_NAMED_TOKENS = (
    "Token, by vocabulary string, text, or # and its id ('#2003'), or a file: txt with one token per line, "
    "or a table with a column token_id or token. Repeatable."
)


def _categories() -> list[str]:
    from stickytoken.vocabulary import Category

    return [category.value for category in Category]


def _completed(incomplete: str) -> list[str]:
    """List the categories in the case in which the user began one; typer offers those that fit."""
    return [name.lower() if incomplete.islower() else name for name in _categories()]


def _category(name: str) -> str:
    """Parse the name of a category, in any case."""
    if name.upper() not in _categories():
        raise typer.BadParameter(f"{name!r} is not a category: use one of {', '.join(_categories())}")
    return name.upper()


Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="Run folder, or model as for detect.")
]
TokenArguments: TypeAlias = Annotated[list[str], typer.Argument(help="Tokens, by vocabulary string or text.")]
Ids: TypeAlias = Annotated[bool, texts_option("--ids", help="Read the arguments as token ids.")]
Column: TypeAlias = Annotated[
    str | None, texts_option(help="Column of --sentences to read. Default: found by name.")
]
Tokens: TypeAlias = Annotated[list[str] | None, texts_option(help=f"{_NAMED_TOKENS} Default: all tokens.")]
ImpactTokens: TypeAlias = Annotated[
    list[str] | None, texts_option("--tokens", help=f"{_NAMED_TOKENS} Default: the sticky tokens of the run.")
]
InCategory: TypeAlias = Annotated[
    str | None,
    texts_option(
        "--category",
        parser=_category,
        autocompletion=_completed,
        metavar="CATEGORY",
        help="List tokens of one category, such as OK or UNDECODEABLE.",
    ),
]
Sample: TypeAlias = Annotated[
    int | None, texts_option(min=1, help="Measure only this many tokens, drawn at random.")
]


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What carriers, anchors and pairs are made from."""

    sentences: Annotated[
        str | None,
        texts_option(
            "--sentences",
            help="A txt, csv, tsv, jsonl or parquet file, hub:REPOSITORY or hub:REPOSITORY@SPLIT, or paper. "
            "Default: the bundled corpus.",
        ),
    ] = None
    column: Column = None
    pairs: Annotated[
        Path | None,
        texts_option(
            "--pairs",
            help="File of pairs (sentence1, sentence2, similarity) to use instead of sampled ones.",
        ),
    ] = None

    def read(self) -> Sentences | None:
        """Read the corpus; None where pairs take its place."""
        from stickytoken.corpora import load_sentences

        if self.pairs is None or self.sentences is not None:
            return load_sentences(self.sentences, self.column)
        if self.column is not None:
            raise InputError(
                f"--column {self.column!r} is given without --sentences: pairs have the columns sentence1, "
                "sentence2 and similarity; leave --column out, or pass --sentences in place of --pairs"
            )
        return None


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
        """Return the options as `scan` takes them."""
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
        """The requested format."""
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


class LineFormat(StrEnum):
    """What is printed of cleaned lines."""

    TEXT = "text"
    JSON = "json"


LineOutput: TypeAlias = Annotated[
    LineFormat,
    typer.Option(
        "--format",
        "-f",
        help="Print the lines, or one JSON document of the removals.",
        rich_help_panel=OUTPUT,
    ),
]
Actions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="KIND=ACTION",
        help="What to do with flagged, special, run or interleaved findings: remove, replace, escape (special"
        " only), report or refuse. Repeatable. Default: remove, report for interleaved.",
        rich_help_panel=TEXTS,
    ),
]


def parsed_actions(values: list[str] | None) -> dict[SpanKind, Action]:
    """Read actions by kind."""
    from stickytoken.cleaning.spans import actions_of
    from stickytoken.errors import InputError

    actions: dict[str, str] = {}
    for value in values or ():
        kind, sign, action = value.partition("=")
        if not sign:
            raise typer.BadParameter(f"{value!r} is not of the form KIND=ACTION", param_hint="--action")
        actions[kind.strip()] = action.strip()
    try:
        return {kind: action for kind, action in actions_of(actions).items() if kind in actions}
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--action") from error
