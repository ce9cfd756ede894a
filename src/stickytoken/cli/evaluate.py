"""stickytoken evaluate: clean scores of a labelled task."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.output import print_json, print_table, status, tell


@reported
@spread
def evaluate(
    model: o.Model,
    task: Annotated[
        str,
        typer.Option(
            help="File or folder: STS, pair classification, reranking, classification, clustering, retrieval "
            "as BEIR; or the name of an MTEB task.",
            show_default=False,
        ),
    ],
    *,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Score a model on a labelled task. Token prepending stands beside the plain prompt at its layer.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl
    """
    from stickytoken.evaluation import compare, find_task

    found, notes = find_task(task)
    for note in notes:
        tell(f"note: {note}")
    encoder = load(model, loading, prompting)
    with status(f"encoding {found.units:,} {found.unit}"):
        comparison = compare(encoder, found)
    if comparison.cut:
        tell(f"note: {comparison.cut:,} texts were cut to what the model reads")
    if output_format is o.Format.JSON:
        print_json(
            {
                "model": model,
                "task": task,
                "kind": found.layout,
                "unit": found.unit,
                "units": found.units,
                "cut": comparison.cut,
                "scores": [asdict(row) for row in comparison.scores],
            }
        )
        return
    columns = ("encoding", "start", "exit", "layer", *found.metrics, "seconds")
    rows = [
        [row.encoding, row.start, row.exit, row.layer, *map(row.scores.get, found.metrics), row.seconds]
        for row in comparison.scores
    ]
    print_table(f"{model} on {task}", columns, rows)
