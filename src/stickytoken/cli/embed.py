"""stickytoken embed: vectors of a file of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.models import Reading, chosen_encoder
from stickytoken.cli.output import print_json, say
from stickytoken.cli.progress import counted


@reported
def embed(
    model: o.Model,
    source: Annotated[
        Path,
        typer.Option("--input", help="txt with a text a line, csv, tsv, jsonl, parquet.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", help="A new parquet file.", show_default=False)],
    column: Annotated[
        str | None, typer.Option(help="Column of --input that holds the texts.", show_default=False)
    ] = None,
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
    """Write a vector for every text of a file, in its order.

    Example: stickytoken embed ./qwen2 --prompt prompteol --input texts.txt --output vectors.parquet
    """
    from stickytoken.evaluation.embedding import embed_file, require_new_file, texts_of_file

    texts = texts_of_file(source, column)
    require_new_file(output)
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
    with counted("texts") as progress:
        dimension = embed_file(encoder, texts, output, progress)
    if output_format is o.Format.JSON:
        print_json({"model": model, "texts": len(texts), "dimension": dimension, "output": str(output)})
    else:
        say(f"{len(texts):,} vectors of {dimension:,} components in {output}")
