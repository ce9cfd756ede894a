"""stickytoken evaluate: clean scores of a labelled task."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from stickytoken.cli._loading import announced, command, load
from stickytoken.cli.options.model import EndpointLoadingOptions, ModelOrEndpoint, PromptingOptions
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, texts_option
from stickytoken.cli.output.console import inform, print_json, print_table


@command
def evaluate(
    model: ModelOrEndpoint,
    task: Annotated[str, texts_option(help="Task file, BEIR folder, or name of an MTEB task.")],
    *,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Score a model on a labelled task, with token prepending or contrast and with the plain prompt.

    Example: stickytoken evaluate ./qwen2 --prompt prompteol --token-prepending --task stsb-test.jsonl
    """
    from stickytoken.evaluation import compare
    from stickytoken.tasks.mteb import find_task

    found, notes = find_task(task)
    for note in notes:
        inform(f"note: {note}")
    encoder = load(model, loading, prompting, tokenizer_needed=False)
    inform(f"encoding {found.units:,} {found.unit}")
    with announced(encoder, loading, lambda stand_in, _: compare(stand_in, found)):
        comparison = compare(encoder, found)
    if comparison.cut:
        inform(f"note: {comparison.cut:,} texts were truncated to the length that the model reads")
    if output_format is Format.JSON:
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
    contrasting = any(row.contrast_layer is not None for row in comparison.scores)
    added = ("contrast layer", "strength", "rule") if contrasting else ()
    columns = ("encoding", "start", "exit", "layer", *added, *found.metrics, "seconds")
    rows = []
    for row in comparison.scores:
        settings: list[object] = [row.encoding, row.start, row.exit, row.layer]
        if contrasting:
            settings += [row.contrast_layer, row.contrast_strength, row.contrast_rule]
        rows.append([*settings, *map(row.scores.get, found.metrics), row.seconds])
    print_table(f"{model} on {task}", columns, rows)
