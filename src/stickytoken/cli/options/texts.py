"""Options that name tokens and texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import texts_option
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.corpora import Sentences

_NAMED_TOKENS = (
    "Token, by vocabulary string, text, or # and its id ('#2003'), or a file: txt with one token per line, "
    "or a table with a column token_id or token. Repeatable."
)


def _categories() -> list[str]:
    from stickytoken.vocabulary.categories import Category

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
        """Read the corpus; None where pairs take its place.

        Raises:
            InputError: it cannot be read, or a column is named for pairs.
        """
        from stickytoken.corpora import load_sentences

        if self.pairs is None or self.sentences is not None:
            return load_sentences(self.sentences, self.column)
        if self.column is not None:
            raise InputError(
                f"--column {self.column!r} is given without --sentences: pairs have the columns sentence1, "
                "sentence2 and similarity; leave --column out, or pass --sentences in place of --pairs"
            )
        return None
