"""stickytoken judge: what the tokens of a finished run do to the texts of a corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._command import command
from stickytoken.cli._endpoints import announced
from stickytoken.cli._run_models import load_for
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import TableFormat, VerbosityOptions
from stickytoken.cli.options.panels import method_option, output_option, texts_option
from stickytoken.cli.options.texts import Column
from stickytoken.cli.output.console import print_json
from stickytoken.cli.output.dimensions import print_dimensions
from stickytoken.cli.output.judgement import print_judgement
from stickytoken.cli.output.spreadsheet import print_csv


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
    column: Column = None,
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
    loading: LoadingOptions,
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
    from stickytoken.methods.judgement import MEASURING

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
        print_judgement(opened.model_name, found, limit)
        if found.others:
            print_dimensions(opened.model_name, found.by_dimension())
