"""stickytoken tune: choose the layers of token prepending."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stickytoken.cli._command import command
from stickytoken.cli._loading import load
from stickytoken.cli.options.model import LoadingOptions, Model, PromptingOptions, Start
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions
from stickytoken.cli.options.panels import language_option, texts_option
from stickytoken.cli.output.console import print_json, print_line, print_table
from stickytoken.cli.output.progress import counted
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.evaluation import Tuning


@command
def tune(
    model: Model,
    task: Annotated[
        Path,
        texts_option(
            help="Development set: a csv, tsv, jsonl or parquet file with sentence1, sentence2 and score."
        ),
    ],
    prompt: Annotated[
        str, language_option(help="prompteol, cot, ke, metaeol, or a text with {sentence}.")
    ] = "prompteol",
    start: Start = None,
    *,
    loading: LoadingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Choose start, exit and layer of token prepending by the score on a development set.

    Example: stickytoken tune ./qwen2 --task stsb-dev.jsonl --prompt prompteol
    """
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.prompts import find_prompt
    from stickytoken.evaluation import read_similarity
    from stickytoken.evaluation import tune as run_tuning

    find_prompt(prompt)  # a text without {sentence} would be put in front of every input
    pairs = read_similarity(task)
    encoder = load(model, loading, PromptingOptions(prompt=prompt))
    if not isinstance(encoder, CausalPromptEncoder):
        raise InputError(
            f"{model!r} is a SentenceTransformer: pass a plain language model, which token prepending needs"
        )
    with counted("settings") as progress:
        found = run_tuning(encoder, pairs, start=start, progress=progress)
    if output_format is Format.JSON:
        print_json(
            {"model": model, "task": str(task), "prompt": prompt, "pairs": pairs.units, **asdict(found)}
        )
        return
    _show(model, found, encoder.layers)


def _show(model: str, found: Tuning, layers: int) -> None:
    """Print one row per setting with its best layer and a bar, then the choice."""
    rows = []
    for place in range(0, len(found.tried), layers):
        span = [own for own in found.tried[place : place + layers] if own.spearman is not None]
        if not span:
            continue
        best = max(span, key=lambda own: own.spearman or 0.0)
        at_best = next((own.spearman for own in span if own.layer == found.best.layer), None)
        bar = "#" * max(0, round((best.spearman or 0.0) / 2))
        rows.append([best.start, best.exit, best.layer, best.spearman, at_best, bar])
    columns = ("start", "exit", "best layer", "spearman", f"at layer {found.best.layer}", "")
    print_table(f"Token prepending on {model}", columns, rows)
    best, plain = found.best, found.plain_at_best
    beside = "no defined score" if plain.spearman is None else f"{plain.spearman:.2f}"
    print_line(
        f"best: --token-prepending --start {best.start} --exit {best.exit} --layer {best.layer} "
        f"scores {best.spearman:.2f}; the plain prompt scores {beside} at that layer, and "
        f"{found.plain.spearman:.2f} at its best layer, {found.plain.layer}"
    )
