"""stickytoken published: what the paper published of a model, and a run beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import TableFormat, VerbosityOptions, output_option, texts_option
from stickytoken.cli.output.console import print_columns, print_csv, print_json, print_line
from stickytoken.methods.entry import Column

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.comparisons.published import BesideRun

_MODELS = (
    Column("model", "model"),
    Column("vocabulary", "vocabulary"),
    Column("available", "available"),
    Column("candidates", "candidates"),
    Column("sticky", "sticky"),
    Column("mean_similarity", "u", 3),
    Column("score_threshold", "score of the last candidate", 1),
)
_TOKENS = (
    Column("token_id", "id"),
    Column("token", "token"),
    Column("sticky_score", "score", 1),
    Column("validation_rate", "validation rate", 3),
    Column("sd", "run: SD", 2),
    Column("sd_low", "low", 2),
    Column("sd_high", "high", 2),
    Column("percentile", "lifts more than", 2),
    Column("verdict", "verdict"),
)


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
            _print_models(models)
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
        _print_published(facts, tokens, beside)


def _print_models(models: pl.DataFrame) -> None:
    """Print one row per model, in the order of the paper."""
    print_columns("Published results, in the order of the paper", _MODELS, models)
    _print_source()


def _print_published(facts: Mapping[str, Any], tokens: pl.DataFrame, beside: BesideRun | None) -> None:
    """Print what was published of a model, and a run beside it."""
    print_columns(
        f"{facts['sticky']} published sticky tokens of {facts['model']}",
        [column for column in _TOKENS if column.key in tokens.columns],
        tokens,
    )
    print_line(
        f"{facts['available']:,} of {facts['vocabulary']:,} entries available, {facts['candidates']:,} "
        f"candidates with a score of {facts['score_threshold']:.1f} or more; mean similarity u = "
        f"{facts['mean_similarity']:.4f}"
    )
    if beside is not None:
        for line in beside.in_words():
            print_line(line)
    _print_source()


def _print_source() -> None:
    from stickytoken.comparisons.published import COMPARABLE, SOURCE

    print_line(COMPARABLE)
    print_line(f"source: {SOURCE}")
