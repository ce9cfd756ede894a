"""stickytoken evaluate: clean scores of a labelled task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.models import Reading, chosen_encoder
from stickytoken.cli.output import print_json, print_table, status


@reported
def evaluate(
    model: o.Model,
    task: Annotated[
        Path,
        typer.Option(
            help="csv, tsv, jsonl or parquet with sentence1, sentence2, score.",
            show_default=False,
        ),
    ],
    device: o.Device = None,
    dtype: o.Dtype = "float32",
    prompt: o.Prompt = None,
    prompt_name: o.PromptName = None,
    token_prepending: o.TokenPrepending = False,
    start: o.Start = None,
    exit: o.Exit = None,  # noqa: A002 - the published name
    layer: o.Layer = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    token_budget: o.TokenBudget = None,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Score a model on pairs that people scored; token prepending beside the plain prompt at the same layer.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl
    """
    from stickytoken.evaluation import compare_sts, read_sts

    pairs = read_sts(task)
    encoder = chosen_encoder(
        model,
        device=device,
        dtype=dtype,
        prompt=prompt,
        prompt_name=prompt_name,
        reading=Reading(token_prepending, start, exit, layer),
        revision=revision,
        trust_remote_code=trust_remote_code,
        token_budget=token_budget,
    )
    with status(f"encoding {len(pairs):,} pairs"):
        rows = [asdict(row) for row in compare_sts(encoder, pairs)]
    if output_format is o.Format.JSON:
        print_json({"model": model, "task": str(task), "kind": "sts", "pairs": len(pairs), "scores": rows})
        return
    columns = ("encoding", "start", "exit", "layer", "spearman", "seconds")
    print_table(f"{model} on {task}", columns, [[row[column] for column in columns] for row in rows])
