"""stickytoken embed, evaluate and tune: vectors of texts, and the layers of prompted language models."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.evaluation import Tuning


@command()
def embed(
    model: opt.ModelOrEndpoint,
    source: Annotated[Path, opt.texts_option("--input")],
    out: opt.Output[Path],
    column: opt.Texts[str | None] = None,
    *,
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Write one vector per text of a file, in the order of the file.

    Example: stickytoken embed ./qwen2 --prompt prompteol --input texts.txt --out vectors.parquet

    Args:
        source: A txt file with one text per line, or a csv, tsv, jsonl or parquet file.
        out: New parquet file.
        column: Column of --input to read. Default: found by name.
    """
    from stickytoken.evaluation import embed_file, require_new_file, texts_of_file
    from stickytoken.measurement.engine import Progress

    texts = texts_of_file(source, column)
    require_new_file(out)
    encoder = opt.load(model, loading, tokenizer_needed=False)
    opt.tell_layer(encoder)
    with opt.announced(encoder, loading, lambda stand_in, _: stand_in.encode(texts)) as progress:
        dimension = embed_file(
            encoder, texts, out, lambda done, total: progress(Progress("texts", done, total, computed=done))
        )
    if output_format is opt.Format.JSON:
        written = {"model": model, "texts": len(texts), "dimension": dimension, "output": str(out)}
        console.print_json(written)
    else:
        console.print_line(f"{len(texts):,} vectors of {dimension:,} components in {out}")


@command()
def evaluate(
    model: opt.ModelOrEndpoint,
    task: opt.Texts[str],
    *,
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Score a model on a labelled task, with token prepending or contrast and with the plain prompt.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl

    Args:
        task: Task file, BEIR folder, or name of an MTEB task.
    """
    from stickytoken.data.tasks import find_task
    from stickytoken.evaluation import compare

    found, notes = find_task(task)
    console.inform_notes(notes)
    encoder = opt.load(model, loading, tokenizer_needed=False)
    console.inform(f"encoding {found.units:,} {found.unit}")
    with opt.announced(encoder, loading, lambda stand_in, _: compare(stand_in, found)):
        comparison = compare(encoder, found)
    if comparison.cut:
        console.inform(f"note: {comparison.cut:,} texts were truncated to the length that the model reads")
    if output_format is opt.Format.JSON:
        told = {"model": model, "task": task, "kind": found.layout, "unit": found.unit, "units": found.units}
        scores = [asdict(row) for row in comparison.scores]
        console.print_json(told | {"cut": comparison.cut, "scores": scores})
        return
    contrasting = any(row.contrast_layer is not None for row in comparison.scores)
    rows = []
    for row in comparison.scores:
        contrast = (row.contrast_layer, row.contrast_strength, row.contrast_rule) if contrasting else ()
        settings = (row.encoding, row.start, row.exit, row.layer, *contrast)
        rows.append([*settings, *map(row.scores.get, found.metrics), row.seconds])
    added = ("contrast layer", "strength", "rule") if contrasting else ()
    columns = ("encoding", "start", "exit", "layer", *added, *found.metrics, "seconds")
    console.print_table(f"{model} on {task}", columns, rows)


@dataclass(frozen=True)
class TuningOptions(opt.PromptingOptions):
    """What to choose, and what to keep.

    Attributes:
        prompt: prompteol, cot, ke, ck, metaeol, or a text with {sentence}.
        token_prepending: With --contrast: keep token prepending as it is given.
        exit: First layer that token prepending leaves alone, where it is kept.
        contrast: Choose contrast instead of token prepending.
    """

    prompt: opt.Language[str] = "prompteol"
    prompt_name: None = field(default=None, init=False)
    layer: None = field(default=None, init=False)


@command()
def tune(
    model: opt.Model,
    task: opt.Texts[Path],
    *,
    tuning: TuningOptions,
    loading: opt.LoadingOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Choose the layers of token prepending, or of contrast, by the score on a development set.

    Example: stickytoken tune ./qwen2 --task stsb-dev.jsonl --prompt prompteol --contrast

    Args:
        task: Development set: a csv, tsv, jsonl or parquet file with sentence1, sentence2 and score.
    """
    from stickytoken.encoders import prompted as prompts
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.protocol import Prompting
    from stickytoken.evaluation import read_similarity, tune as tune_prepending, tune_contrast
    from stickytoken.measurement.engine import Progress

    prompts.find_prompt(tuning.prompt)  # a text without {sentence} would be put in front of every input
    prompts.require_contrast_options(Prompting(**asdict(tuning)))
    reading = opt.ModelOptions(**asdict(loading), prompt=tuning.prompt)
    if tuning.contrast:
        reading = replace(
            reading, token_prepending=tuning.token_prepending, start=tuning.start, exit=tuning.exit
        )
    elif tuning.exit is not None:
        raise InputError(
            f"exit {tuning.exit} is what tune chooses: leave it out, or keep it with --contrast "
            "--token-prepending"
        )
    pairs = read_similarity(task)
    encoder = opt.load(model, reading)
    if not isinstance(encoder, CausalPromptEncoder):
        raise InputError(
            f"{model!r} is a SentenceTransformer: pass a plain language model, which "
            f"{'contrast' if tuning.contrast else 'token prepending'} needs"
        )
    with console.progress_bar() as show:

        def progress(done: int, total: int) -> None:
            show(Progress("settings", done, total, computed=done))

        if tuning.contrast:
            rule = prompts.ContrastRule(tuning.contrast_rule or prompts.ContrastRule.SCALED)
            strength, layer = tuning.contrast_strength, tuning.contrast_layer
            found = tune_contrast(
                encoder, pairs, layer=layer, strength=strength, rule=rule, progress=progress
            )
        else:
            found = tune_prepending(encoder, pairs, start=tuning.start, progress=progress)
    if output_format is opt.Format.JSON:
        told = {"model": model, "task": str(task), "prompt": tuning.prompt, "pairs": pairs.units}
        console.print_json(told | asdict(found))
    else:
        _print_tuning(model, found)


def _print_tuning(model: str, found: Tuning) -> None:
    best, plain = found.best, found.plain_at_best
    contrasting = best.contrast_layer is not None
    shown = 4 if contrasting else 2
    rows = []
    for setting, tried in groupby(
        found.tried, lambda own: (own.start, own.exit, own.contrast_layer, own.contrast_strength)
    ):
        span = [own for own in tried if own.spearman is not None]
        if not span:
            continue
        top = max(span, key=lambda own: own.spearman or 0.0)
        at_best = next((own.spearman for own in span if own.layer == best.layer), None)
        bar = "#" * max(0, round((top.spearman or 0.0) / 2))
        rows.append([*setting[:shown], top.layer, top.spearman, at_best, bar])
    headings = ["start", "exit", "contrast layer", "strength"][:shown]
    columns = (*headings, "best layer", "spearman", f"at layer {best.layer}", "")
    title = f"{'Contrast' if contrasting else 'Token prepending'} on {model}"
    console.print_table(title, columns, rows)
    options = []
    if best.start is not None:
        options.append(f"--token-prepending --set start={best.start} --set exit={best.exit}")
    if contrasting:
        options.append(f"--contrast --set contrast-layer={best.contrast_layer}")
        if best.contrast_strength is not None:
            options.append(f"--set contrast-strength={best.contrast_strength:g}")
        if best.contrast_rule != "scaled":
            options.append(f"--set contrast-rule={best.contrast_rule}")
    beside = "no defined score" if plain.spearman is None else f"{plain.spearman:.2f}"
    console.print_line(
        f"best: {' '.join(options)} "
        f"--set layer={best.layer} scores {best.spearman:.2f}; the plain prompt scores "
        f"{beside} at that layer, and {found.plain.spearman:.2f} at its best layer, {found.plain.layer}"
    )
