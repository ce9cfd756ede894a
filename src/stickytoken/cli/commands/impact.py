"""stickytoken impact: what sticky tokens cost on a task."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stickytoken.cli._loading import announced, command, load_for, named_token_ids, run_in
from stickytoken.cli.options.method import MeasuredOptions, MeasuringOptions
from stickytoken.cli.options.model import EndpointLoadingOptions, EngineOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option
from stickytoken.cli.options.texts import Source
from stickytoken.cli.output.console import inform, print_json, print_line, print_table
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion

if TYPE_CHECKING:
    from stickytoken.impacts import Impact


@command
def impact(
    source: Source,
    *,
    measured: MeasuredOptions,
    model: RunsModel = None,
    measuring: MeasuringOptions,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    computing: EngineOptions,
    out: Annotated[
        Path | None,
        output_option(
            help="Output folder. Default: impact-<identity> in the run folder, where report finds it; "
            "runs/<model>-impact-<identity> for a model."
        ),
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Measure what sticky tokens cost on a task. Run the same command again to continue an interrupted one.

    Example: stickytoken impact all-MiniLM-L6-v2 --tokens '[CLS]' --task sts.jsonl --intrusion bundled
    """
    from stickytoken.encoders.protocol import reads_ids
    from stickytoken.impacts import ImpactSettings
    from stickytoken.impacts import impact as measure
    from stickytoken.impacts.results import require_place

    if out is not None:
        require_place(out)  # before the model is loaded
    settings = ImpactSettings(**asdict(measuring))
    engine = computing.choice
    tasks = [*(measured.task or ()), *(_paper_tasks() if measured.preset else ())]
    run = run_in(source, model)
    if run is None and not measured.tokens:
        raise InputError(
            f"{source!r} is not the folder of a finished run: name tokens with --tokens, or run "
            "`stickytoken detect` first and pass its folder"
        )
    encoder = load_for(source, None if run is None else run.record, loading, prompting, model)
    if settings.insertion is Insertion.IDS and not reads_ids(encoder):
        settings = replace(settings, insertion=Insertion.TEXT)  # all that such a model reads
    whole = partial(
        measure,
        tasks=tasks,
        run=run,
        tokens=named_token_ids(encoder, measured.tokens),
        intrusion=measured.intrusion,
        settings=settings,
    )
    with announced(encoder, loading, lambda stand_in, place: whole(stand_in, out=place)) as progress:
        found = whole(encoder, out=out, engine=engine, progress=progress)
    show_impact(found, output_format)
    if run is not None and found.path.parent == run.path:
        inform(f"for a report with this: stickytoken report {run.path}")
    if found.failed:
        raise InputError(
            "not run: " + "; ".join(f"{name} ({reason})" for name, reason in found.failed.items())
        )


def _paper_tasks() -> tuple[str, ...]:
    from stickytoken.tasks.mteb import PAPER_TASKS

    return PAPER_TASKS


def show_impact(impact: Impact, output_format: Format) -> None:
    """Print a measurement, as tables or as one JSON document."""
    if output_format is Format.JSON:
        print_json(impact.summary())
    else:
        _print(impact)


def _print(impact: Impact) -> None:
    from stickytoken.impacts.results import measured_kind
    from stickytoken.impacts.statistics import (
        CONDITIONS,
        EFFECTS,
        INTRUSION,
        cost_sentence,
        headed,
        settings_line,
    )

    effects, kind = impact.effects, measured_kind(impact.record)
    main = effects.filter("main")
    for effect in main.iter_rows(named=True):
        print_line(cost_sentence(effect, kind))
    if not effects.is_empty():
        print_table("What copies cost", *headed(EFFECTS, effects.to_dicts(), kind))
        conditions = impact.conditions.join(
            main.select("task", "metric"), on=["task", "metric"], maintain_order="left"
        )
        print_table("By token, main metrics", *headed(CONDITIONS, conditions.to_dicts(), kind))
    intrusion = impact.intrusion.to_dicts()
    if intrusion:
        title = f"Queries with a random document of {intrusion[0]['corpus']} in their top 10, by copies in it"
        print_table(title, *headed(INTRUSION, intrusion, kind))
    print_line(settings_line(impact.record.settings))
    print_line(f"{impact.result.sequences:,} texts in {impact.result.seconds:,.0f} s; impact: {impact.path}")
    for task in impact.result.tasks:
        if task.cut:
            inform(
                f"note: {task.name}: {task.cut} of {task.texts} texts were truncated so that the copies fit, "
                "the same in every condition"
            )
    if intrusion and intrusion[0]["cut"]:
        cut, documents = intrusion[0]["cut"], intrusion[0]["documents"]
        inform(f"note: intrusion: {cut} of {documents} documents were truncated so that the copies fit")
    for note in impact.record.notes:
        inform(f"note: {note}")
