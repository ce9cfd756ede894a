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
    from collections.abc import Sequence

    from stickytoken.evaluation import Comparison, Difference, Tuning


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
        embedded = embed_file(
            encoder, texts, out, lambda done, total: progress(Progress("texts", done, total, computed=done))
        )
    missing = embedded.without_vector
    if output_format is opt.Format.JSON:
        console.print_json(
            {
                "model": model,
                "texts": len(texts),
                "dimension": embedded.dimension,
                "without_vector": list(missing),
                "output": str(out),
            }
        )
        return
    count = len(texts) - len(missing)
    console.print_line(f"{count:,} vectors of {embedded.dimension:,} components in {out}")
    if missing:
        texts_are = "1 text is" if len(missing) == 1 else f"{len(missing):,} texts are"
        console.print_line(f"{texts_are} without a vector, null in the file")


@command()
def evaluate(
    model: opt.ModelOrEndpoint,
    task: opt.Texts[list[str]],
    *,
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Score a model on labelled tasks, with token prepending or contrast and with the plain prompt.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl

    Args:
        task: Task file, BEIR folder, or name of an MTEB task. Repeat it for several; their mean comes last.
    """
    from stickytoken.data.tasks import find_task
    from stickytoken.evaluation import average, compare, guess_note
    from stickytoken.unit_vectors import Similarity

    tasks = []
    for name in task:
        found, notes = find_task(name)
        console.inform_notes(notes)
        tasks.append(found)
    encoder = opt.load(model, loading, tokenizer_needed=False)
    comparisons = []
    with opt.announced(encoder, loading, lambda stand_in, _: [compare(stand_in, each) for each in tasks]):
        for found in tasks:
            console.inform(f"encoding {found.units:,} {found.unit}")
            comparisons.append(compare(encoder, found))
    mean = average(comparisons) if len(tasks) > 1 else None
    notes = [
        f"{comparison.cut:,} texts were truncated to the length that the model reads"
        for comparison in comparisons
        if comparison.cut
    ]
    similarity = comparisons[0].similarity
    if similarity is not Similarity.COSINE:
        notes.append(f"vectors are compared by the model's own similarity, {similarity}")
    guessed = guess_note(mean or comparisons[0])
    console.inform_notes([*notes, *([guessed] if guessed else [])])
    if output_format is opt.Format.JSON:
        documents = []
        for name, found, comparison in zip(task, tasks, comparisons, strict=True):
            about = {"task": name, "kind": found.layout, "unit": found.unit, "units": found.units}
            scores = [asdict(row) for row in comparison.scores]
            differences = [asdict(row) for row in comparison.differences]
            about |= {"similarity": comparison.similarity, "cut": comparison.cut}
            documents.append(about | {"scores": scores, "differences": differences})
        if mean is None:
            console.print_json({"model": model} | documents[0])
        else:
            console.print_json({"model": model, "tasks": documents, "mean": asdict(mean)})
        return
    for name, found, comparison in zip(task, tasks, comparisons, strict=True):
        _print_scores(f"{model} on {name}", found.metrics, comparison)
        if mean is None:
            _print_differences(f"{found.metrics[0]} minus that of the first", comparison.differences)
    if mean is not None:
        title = f"{model}, mean of {len(tasks)} main scores"
        rows = [(*way, score) for way, score in zip(mean.encodings, mean.scores, strict=True)]
        console.print_table(title, ("encoding", "layer", "mean"), rows)
        _print_differences("mean minus that of the first", mean.differences)


def _print_scores(title: str, metrics: Sequence[str], comparison: Comparison) -> None:
    contrasting = any(row.contrast_layer is not None for row in comparison.scores)
    rows = []
    for row in comparison.scores:
        contrast = (row.contrast_layer, row.contrast_strength, row.contrast_rule) if contrasting else ()
        settings = (row.encoding, row.start, row.exit, row.layer, *contrast)
        rows.append([*settings, *map(row.scores.get, metrics), row.seconds])
    added = ("contrast layer", "strength", "rule") if contrasting else ()
    columns = ("encoding", "start", "exit", "layer", *added, *metrics, "seconds")
    console.print_table(title, columns, rows)


def _print_differences(title: str, differences: Sequence[Difference]) -> None:
    if differences:
        rows = [(row.encoding, row.layer, row.value, row.low, row.high) for row in differences]
        columns = ("encoding", "layer", "difference", "low", "high")
        console.print_table(f"{title}, 95% interval", columns, rows)


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
        f"--layer {best.layer} scores {best.spearman:.2f}; the plain prompt scores "
        f"{beside} at that layer, and {found.plain.spearman:.2f} at its best layer, {found.plain.layer}"
    )
