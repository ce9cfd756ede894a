"""stickytoken embed: the vectors of the texts in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stickytoken.cli._loading import announced, command, load, tell_layer
from stickytoken.cli.options.model import EndpointLoadingOptions, ModelOrEndpoint, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option, texts_option
from stickytoken.cli.output.console import print_json, print_line


@command
def embed(
    model: ModelOrEndpoint,
    source: Annotated[
        Path,
        texts_option(
            "--input", help="A txt file with one text per line, or a csv, tsv, jsonl or parquet file."
        ),
    ],
    out: Annotated[Path, output_option(help="New parquet file.")],
    column: Annotated[
        str | None, texts_option(help="Column of --input to read. Default: found by name.")
    ] = None,
    *,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Write one vector per text of a file, in the order of the file.

    Example: stickytoken embed ./qwen2 --prompt prompteol --input texts.txt --out vectors.parquet
    """
    from stickytoken.evaluation import embed_file, require_new_file, texts_of_file
    from stickytoken.measurement.stage import Progress

    texts = texts_of_file(source, column)
    require_new_file(out)
    encoder = load(model, loading, prompting, tokenizer_needed=False)
    tell_layer(encoder)
    with announced(encoder, loading, lambda stand_in, _: stand_in.encode(texts)) as progress:
        dimension = embed_file(
            encoder, texts, out, lambda done, total: progress(Progress("texts", done, total, computed=done))
        )
    if output_format is Format.JSON:
        print_json({"model": model, "texts": len(texts), "dimension": dimension, "output": str(out)})
    else:
        print_line(f"{len(texts):,} vectors of {dimension:,} components in {out}")
