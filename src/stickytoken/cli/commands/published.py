"""stickytoken published: what the paper published of a model, and a run beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._command import command
from stickytoken.cli.options.output import TableFormat, VerbosityOptions
from stickytoken.cli.options.panels import output_option, texts_option
from stickytoken.cli.output.console import print_json
from stickytoken.cli.output.published import print_models, print_published
from stickytoken.cli.output.spreadsheet import print_csv


@command
def published(
    model: Annotated[
        str | None,
        typer.Argument(help="A model of the paper. Default: that of --run, else list all forty."),
    ] = None,
    run: Annotated[
        Path | None, texts_option(help="Run folder of the same model, to put its numbers beside them.")
    ] = None,
    output_format: Annotated[
        TableFormat, output_option("--format", "-f", help="Print tables, one JSON document, or CSV.")
    ] = TableFormat.TABLE,
    *,
    verbosity: VerbosityOptions,
) -> None:
    """Look up the published results of the paper's forty models. Needs no model and no network.

    Example: stickytoken published --run runs/all-MiniLM-L6-v2-profile-0123456789ab all-MiniLM-L6-v2
    """
    from stickytoken.comparisons.published import (
        COMPARABLE,
        SOURCE,
        beside_run,
        model_of,
        published_model,
        published_models,
        published_tokens,
    )
    from stickytoken.detection import open_run

    opened = None if run is None else open_run(run)
    if model is None and opened is not None:
        model = model_of(opened)
    told = {"source": SOURCE, "comparable": COMPARABLE}
    if model is None:
        models = published_models()
        if output_format is TableFormat.JSON:
            print_json({"models": models.to_dicts(), **told})
        elif output_format is TableFormat.CSV:
            print_csv(models)
        else:
            print_models(models)
        return
    facts = published_model(model)
    beside = None if opened is None else beside_run(opened, model)
    tokens = published_tokens(model) if beside is None else beside.tokens
    if output_format is TableFormat.CSV:
        print_csv(tokens)
    elif output_format is TableFormat.JSON:
        found = [] if beside is None else beside.in_words()
        print_json({**facts, "tokens": tokens.to_dicts(), "beside_run": found, **told})
    else:
        print_published(facts, tokens, beside)
