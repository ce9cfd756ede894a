"""The commands embed, evaluate and tune, which encode texts, and score and tune prompted language models."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.settings import NaturalNumber
from stickytoken.settings.loading import LoadingSettings
from stickytoken.settings.reading import Columns
from stickytoken.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stickytoken.data.tasks import AnyTask
    from stickytoken.evaluation import Comparison, Difference, TaskMean, Tried, Tuning


@command(settings=("dtype",))
def embed(
    model: opt.ModelOrEndpoint,
    source: Annotated[str, opt.texts_option("--input")],
    out: opt.OutputOption[Path],
    *,
    columns: Columns,
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Write the vector of every text in a file, in the order of the file.

    Example: stickytoken embed ./qwen2 --prompt prompteol --input texts.txt --out vectors.parquet

    Args:
        source: Your texts, as for scan: a txt file with one text per line, a csv, tsv, json, jsonl or parquet
            file, or a folder.
        out: New parquet file to write.
    """
    from stickytoken.encoders.protocol import capabilities_of, quote_text
    from stickytoken.encoders.roles import Role, in_role
    from stickytoken.evaluation import embed_file, read_text_file, require_new_file
    from stickytoken.measurement.engine import Progress

    file = read_text_file(source, columns)
    texts = file.texts
    console.inform(f"read: {file.meter.summary()}")
    require_new_file(out)
    later = opt.load_later(model, loading, for_documents=False)
    readable_texts = [text for text in texts if text is not None]

    def rehearse(stand_in: Any, _: Path) -> object:
        """Encode with a stand-in for the encoder, which only counts texts, to estimate the cost."""
        return stand_in.encode(readable_texts)

    with opt.cost_announced(later, loading, rehearse) as progress:
        encoder = later.load()
        prompt = capabilities_of(encoder).prompt
        if prompt:
            console.inform(f"prompt: {quote_text(prompt)}")
        if loading.route is None and in_role(encoder, Role.DOCUMENT) is not encoder:
            console.inform(
                "texts are encoded as neither queries nor documents: for documents, pass --route document"
            )

        def show(done: int, total: int) -> None:
            progress(Progress("texts", done, total, computed=done))

        embedded = embed_file(encoder, texts, out, show)
    missing = embedded.without_vector
    if output_format is opt.Format.JSON:
        document = {
            "model": model,
            "texts": len(texts),
            "dimension": embedded.dimension,
            "without_vector": list(missing),
            "truncated": embedded.truncated,
            "skipped": [asdict(record) for record in file.skipped],
            "columns": file.meter.columns,
            "unread_columns": file.meter.unread,
            "output": str(out),
        }
        console.print_json(document)
        return
    count = len(readable_texts) - len(missing)
    console.print_line(f"{count:,} vectors of {embedded.dimension:,} components in {out}")
    if embedded.truncated:
        texts_were = counted(embedded.truncated, "text was", "texts were")
        console.print_line(f"{texts_were} truncated to the length that the model reads")
    if missing:
        texts_are = counted(len(missing), "text is", "texts are")
        console.print_line(f"{texts_are} without a vector, null in the file")
    if file.skipped:
        first = file.skipped[0]
        records = counted(len(file.skipped), "record")
        console.print_line(
            f"{records} without readable text, null in the file; {first.place}: {first.reason}"
        )


Preset = StrEnum("Preset", "STS")


@command()
def evaluate(
    model: opt.ModelOrEndpoint,
    task: opt.TextsOption[list[str] | None] = None,
    preset: opt.TextsOption[Preset | None] = None,
    *,
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Score a model on labelled tasks, with the plain prompt and with token prepending.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl

    Args:
        task: Task file, BEIR folder, or name of an MTEB task. Repeatable. With several tasks, the mean of
            their main scores comes last.
        preset: sts: the seven STS tasks of MTEB: STS12 to STS16, STSBenchmark and SICK-R.
    """
    from stickytoken.data.tasks import STS_TASKS, find_task
    from stickytoken.evaluation import average, compare

    sources = list(task or ())
    if preset is Preset.STS:
        sources += STS_TASKS
    if not sources:
        raise InputError("there is nothing to score: pass --task or --preset sts")
    tasks = []
    for name in sources:
        named_task, notes = find_task(name)
        console.inform_notes(notes)
        tasks.append(named_task)
    later = opt.load_later(model, loading, for_documents=False)

    def rehearse(stand_in: Any, _: Path) -> object:
        """Compare with a stand-in for the encoder, which only counts texts, to estimate the cost."""
        return [compare(stand_in, named_task) for named_task in tasks]

    comparisons = []
    with opt.cost_announced(later, loading, rehearse):
        encoder = later.load()
        if any(named_task.has_queries for named_task in tasks):
            opt.tell_prompts(encoder)
        for named_task in tasks:
            console.inform(f"encoding {named_task.units:,} {named_task.unit}")
            comparisons.append(compare(encoder, named_task))
    mean = average(comparisons) if len(tasks) > 1 else None
    console.inform_notes(_collect_notes(sources, comparisons, mean))
    if output_format is opt.Format.JSON:
        documents = [
            _task_document(name, named_task, comparison)
            for name, named_task, comparison in zip(sources, tasks, comparisons, strict=True)
        ]
        if mean is None:
            console.print_json({"model": model} | documents[0])
        else:
            console.print_json({"model": model, "tasks": documents, "mean": asdict(mean)})
        return
    for name, named_task, comparison in zip(sources, tasks, comparisons, strict=True):
        _print_scores(f"{model} on {name}", named_task.metrics, comparison)
        if mean is None:
            _print_differences(named_task.metrics[0], comparison.differences)
    if mean is not None:
        title = f"{model}, mean of {len(tasks)} main scores"
        # An encoding is a pair: how texts were encoded, such as with token prepending, and the layer.
        rows = [(*encoding, score) for encoding, score in zip(mean.encodings, mean.scores, strict=True)]
        console.print_table(title, ("encoding", "layer", "mean"), rows)
        _print_differences("mean", mean.differences)


def _collect_notes(
    task_names: Sequence[str], comparisons: Sequence[Comparison], mean: TaskMean | None
) -> list[str]:
    """Return what to know about the scores of some tasks, and of their mean if there are several."""
    from stickytoken.evaluation import guess_note
    from stickytoken.unit_vectors import Similarity

    notes = []
    for name, comparison in zip(task_names, comparisons, strict=True):
        truncated_count = comparison.cut
        if truncated_count:
            texts_were = counted(truncated_count, "text was", "texts were")
            notes.append(f"{name}: {texts_were} truncated to the length that the model reads")
    similarity = comparisons[0].similarity  # that of the model, so the same for all tasks
    if similarity is not Similarity.COSINE:
        notes.append(f"vectors are compared with the model's own similarity, {similarity}")
    # The layer from which vectors are read may have been a guess, and a bad one.
    note_on_layer = guess_note(mean or comparisons[0])
    if note_on_layer:
        notes.append(note_on_layer)
    return notes


def _task_document(name: str, task: AnyTask, comparison: Comparison) -> dict[str, Any]:
    return {
        "task": name,
        "kind": task.layout,
        "unit": task.unit,
        "units": task.units,
        "similarity": comparison.similarity,
        "prompts": comparison.prompts,
        "cut": comparison.cut,
        "scores": [{"encoding": row.encoding} | asdict(row) for row in comparison.scores],
        "differences": [asdict(row) for row in comparison.differences],
    }


def _print_scores(title: str, metrics: Sequence[str], comparison: Comparison) -> None:
    rows = []
    for scored in comparison.scores:
        settings = (scored.encoding, scored.start, scored.exit, scored.layer)
        rows.append([*settings, *map(scored.scores.get, metrics), scored.seconds])
    columns = ("encoding", "start", "exit", "layer", *metrics, "seconds")
    console.print_table(title, columns, rows)


def _print_differences(score: str, differences: Sequence[Difference]) -> None:
    if differences:  # none if only the plain prompt was scored
        rows = [
            (
                difference.encoding,
                difference.layer,
                difference.plain_layer,
                difference.value,
                difference.low,
                difference.high,
            )
            for difference in differences
        ]
        columns = ("encoding", "layer", "plain prompt at layer", "difference", "low", "high")
        console.print_table(f"{score}: difference from the plain prompt, 95% interval", columns, rows)


@command()
def tune(
    model: opt.Model,
    task: opt.TextsOption[Path],
    *,
    prompt: opt.LanguageOption[str] = "prompteol",
    start: Annotated[NaturalNumber | None, opt.setting()] = None,
    loading: LoadingSettings,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Choose what scores best on a development set: the plain prompt or token prepending, by layer.

    Example: stickytoken tune ./qwen2 --task stsb-dev.jsonl --prompt prompteol

    Args:
        task: Development set: a csv, tsv, jsonl or parquet file with the columns sentence1, sentence2 and
            score.
        prompt: prompteol, cot, ke, ck, metaeol, or your own prompt, in which {sentence} stands for the text.
        start: First layer that token prepending overwrites, tried before others. Counted from 0.
    """
    from stickytoken.evaluation import read_similarity, tune as tune_prepending
    from stickytoken.language_models import prompts
    from stickytoken.language_models.encoder import CausalPromptEncoder
    from stickytoken.measurement.engine import Progress

    # Rejects a prompt without {sentence}, which would otherwise be put before every input.
    prompts.find_prompt(prompt)
    pairs = read_similarity(task)
    encoder = opt.load(model, opt.ModelOptions(**asdict(loading), prompt=prompt))
    if not isinstance(encoder, CausalPromptEncoder):
        raise InputError(
            f"{model!r} is a SentenceTransformer: pass a plain language model, which token "
            "prepending requires"
        )
    with console.progress_bar() as show:

        def progress(done: int, total: int) -> None:
            show(Progress("settings", done, total, computed=done))

        result = tune_prepending(encoder, pairs, start=start, progress=progress)
    if output_format is opt.Format.JSON:
        inputs = {"model": model, "task": str(task), "prompt": prompt, "pairs": pairs.units}
        console.print_json(inputs | asdict(result))
    else:
        _print_tuning(model, result)


def _print_tuning(model: str, tuning: Tuning) -> None:
    """Print each setting's score at its best layer, and the options to pass for the best setting.

    The table shows a bar of one ``#`` for every two points of the score. Settings without a defined score are
    left out.
    """
    tuned = tuning.tuned
    rows = []
    # `Tuning.tried` lists all layers of a setting one after another, as `groupby` needs.
    for setting, trials in groupby(tuning.tried, lambda trial: (trial.start, trial.exit)):
        score_by_layer = {trial.layer: trial.spearman for trial in trials if trial.spearman is not None}
        if not score_by_layer:
            continue
        best_layer = max(score_by_layer, key=lambda layer: score_by_layer[layer])
        best_score = score_by_layer[best_layer]
        bar = "#" * max(0, round(best_score / 2))
        rows.append([*setting, best_layer, best_score, score_by_layer.get(tuned.layer), bar])
    columns = ("start", "exit", "best layer", "spearman", f"at layer {tuned.layer}", "")
    console.print_table(f"Token prepending on {model}", columns, rows)
    plain_score = "no defined score"
    if tuning.plain_at_tuned.spearman is not None:
        plain_score = f"{tuning.plain_at_tuned.spearman:.2f}"
    scores_of_tuned = f"scores {tuned.spearman:.2f}, and the plain prompt {plain_score} at that layer"
    plain = tuning.plain
    if tuning.best == tuned:
        console.print_line(
            f"best: {_options_of(tuned)} {scores_of_tuned}, and {plain.spearman:.2f} at its best layer, "
            f"{plain.layer}"
        )
        return
    chosen = _options_of(tuning.best)
    if tuning.best.is_plain:
        chosen = f"the plain prompt with {chosen}"
    console.print_line(
        f"best: {chosen} scores {tuning.best.spearman:.2f}; {_options_of(tuned)} {scores_of_tuned}"
    )


def _options_of(trial: Tried) -> str:
    if trial.is_plain:
        return f"--layer {trial.layer}"
    return f"--token-prepending --set start={trial.start} --set exit={trial.exit} --layer {trial.layer}"
