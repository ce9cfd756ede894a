"""stickytoken embed: vectors of a file of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.output import print_json, say
from stickytoken.cli.progress import counted


@reported
@spread
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
    *,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Write a vector for every text of a file, in its order.

    Example: stickytoken embed ./qwen2 --prompt prompteol --input texts.txt --output vectors.parquet
    """
    from stickytoken.evaluation.embedding import embed_file, require_new_file, texts_of_file

    texts = texts_of_file(source, column)
    require_new_file(output)
    encoder = load(model, loading, prompting)
    with counted("texts") as progress:
        dimension = embed_file(encoder, texts, output, progress)
    if output_format is o.Format.JSON:
        print_json({"model": model, "texts": len(texts), "dimension": dimension, "output": str(output)})
    else:
        say(f"{len(texts):,} vectors of {dimension:,} components in {output}")
