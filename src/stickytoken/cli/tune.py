"""stickytoken tune: where token prepending overwrites and where vectors are read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.output import print_json, print_table, say
from stickytoken.cli.progress import counted
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.evaluation import Tuning


@reported
@spread
def tune(
    model: o.Model,
    task: Annotated[
        Path,
        typer.Option(
            help="Development set: csv, tsv, jsonl or parquet with sentence1, sentence2, score.",
            show_default=False,
        ),
    ],
    prompt: Annotated[
        str, typer.Option(help="prompteol, cot, ke, metaeol, or a text with {sentence}.")
    ] = "prompteol",
    start: o.Start = None,
    *,
    loading: LoadingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Choose start, exit and layer of token prepending. A development set decides, and its curve is shown.

    Example: stickytoken tune ./qwen2 --task stsb-dev.jsonl --prompt prompteol
    """
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.prompts import find_prompt
    from stickytoken.evaluation import read_similarity
    from stickytoken.evaluation import tune as run_tuning

    find_prompt(prompt)  # another one would be put in front of every text
    pairs = read_similarity(task)
    encoder = load(model, loading, PromptingOptions(prompt=prompt))
    if not isinstance(encoder, CausalPromptEncoder):
        raise InputError(f"{model!r} is a SentenceTransformer: token prepending needs a plain language model")
    with counted("settings") as progress:
        found = run_tuning(encoder, pairs, start=start, progress=progress)
    if output_format is o.Format.JSON:
        print_json(
            {"model": model, "task": str(task), "prompt": prompt, "pairs": pairs.units, **asdict(found)}
        )
        return
    _show(model, found, encoder.layers)


def _show(model: str, found: Tuning, layers: int) -> None:
    """The curve: a row a setting with its best layer and a bar, then the choice."""
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
    beside = "equal for all pairs" if plain.spearman is None else f"{plain.spearman:.2f}"
    say(
        f"best: --token-prepending --start {best.start} --exit {best.exit} --layer {best.layer} "
        f"with {best.spearman:.2f}; the plain prompt has {beside} at that layer and "
        f"{found.plain.spearman:.2f} at its best, {found.plain.layer}"
    )
