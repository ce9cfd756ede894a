"""stickytoken judge: what the tokens of a finished run do to the texts of a corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli._loading import announced, command, load_for
from stickytoken.cli.options.model import EndpointLoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import (
    TableFormat,
    VerbosityOptions,
    method_option,
    output_option,
    texts_option,
)
from stickytoken.cli.options.texts import Column as ColumnOption
from stickytoken.cli.output.console import inform, print_columns, print_csv, print_json, print_line
from stickytoken.cli.output.run import print_dimensions
from stickytoken.methods.entry import Column

if TYPE_CHECKING:
    from stickytoken.methods.protocol import Judgement

_COLUMNS = (
    Column("token_id", "id"),
    Column("token", "token"),
    Column("sd", "SD", 2),
    Column("lift", "lift", 4),
    Column("lift_low", "low", 4),
    Column("lift_high", "high", 4),
    Column("universality", "universality", 2),
    Column("moves_up", "moves up", 2),
    Column("severity", "severity"),
    Column("verdict", "verdict"),
)


@command
def judge(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    sentences: Annotated[
        str,
        texts_option(
            help="Your texts: a txt, csv, tsv, jsonl or parquet file, hub:REPOSITORY or hub:REPOSITORY@SPLIT."
        ),
    ],
    column: ColumnOption = None,
    anchors: Annotated[
        int, texts_option(min=2, help="Maximum number of texts to compare with, drawn at random.")
    ] = 2000,
    dimensions: Annotated[
        str | None,
        method_option(
            help="Also judge by so many first components of the vectors, of those that the run measured."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        method_option(help="Also judge by the vectors after so many layers, of those that the run measured."),
    ] = None,
    model: RunsModel = None,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    limit: Annotated[int, output_option(min=1, help="Maximum number of tokens to list in a table.")] = 50,
    output_format: Annotated[
        TableFormat,
        output_option(
            "--format",
            "-f",
            help="Print a table or one JSON document of the flagged tokens, or all tokens as CSV.",
        ),
    ] = TableFormat.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Find the tokens that are sticky on your own texts, from a finished run, in seconds.

    Example: stickytoken judge runs/all-MiniLM-L6-v2-profile-0123456789ab --sentences documents.parquet
    """
    from stickytoken.corpora import load_sentences
    from stickytoken.detection import judge as run_judge
    from stickytoken.detection import open_run
    from stickytoken.methods.protocol import MEASURING

    opened = open_run(run)
    opened.method.require_judging(opened)
    corpus = load_sentences(sentences, column)
    encoder = load_for(str(run), opened.record, loading, prompting, model)
    judged = partial(
        run_judge,
        opened,
        corpus,
        anchors=anchors,
        dimensions=() if dimensions is None else dimensions,
        layers=() if layers is None else layers,
    )
    with announced(
        encoder,
        loading,
        lambda stand_in, _: judged(encoder=stand_in, progress=lambda step: stand_in.reached(step.stage)),
        uncertain=MEASURING,
    ) as progress:
        found = judged(encoder=encoder, progress=progress)
    if output_format is TableFormat.JSON:
        print_json(found.summary())
    elif output_format is TableFormat.CSV:
        print_csv(found.tokens)
    else:
        _print_judgement(opened.model_name, found, limit)
        if found.others:
            print_dimensions(opened.model_name, found.by_dimension())


def _print_judgement(model: str, found: Judgement, limit: int) -> None:
    """Print the finding, the flagged tokens, and their basis."""
    import polars as pl

    print_line(_headline(model, found))
    flagged = found.flagged
    if not flagged.is_empty():
        shown = flagged.head(limit).with_columns(
            sd=(pl.col("lift") - found.ordinary_lift) / found.similarity_spread
        )
        print_columns(f"{len(shown)} of {len(flagged)} flagged tokens", _COLUMNS, shown)
        print_line(
            "moves up: share of random queries and documents of the corpus for which copies move the "
            "document past a tenth of the corpus"
        )
    print_line(
        f"{found.texts:,} texts from {found.source}, compared with {found.anchors:,} of them; an ordinary "
        f"token lifts by {found.ordinary_lift:.4f}, similarities spread by {found.similarity_spread:.4f}"
    )
    print_line(
        f"{found.measured} tokens were measured on these texts; the lifts of the others are computed from "
        f"the run, with a standard error of {found.error:.4f}"
    )
    if found.left_out:
        inform(f"note: {found.left_out} texts were left out: the model cannot read them in full")
    if found.undecided:
        inform(f"note: {found.undecided} further tokens may matter but were not measured on these texts")


def _headline(model: str, found: Judgement) -> str:
    sticky, topical = len(found.sticky), len(found.flagged) - len(found.sticky)
    if not sticky and not topical:
        return f"no token of {model} is sticky on these texts"
    tokens = "token is" if sticky == 1 else "tokens are"
    more = f"; {topical} more lift these texts but few other kinds" if topical else ""
    return f"{sticky} {tokens} sticky on these texts{more}"
