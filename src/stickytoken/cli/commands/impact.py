"""stickytoken impact: what sticky tokens cost on a task."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from stickytoken.cli._command import command
from stickytoken.cli._endpoints import announced
from stickytoken.cli._named_tokens import named_token_ids
from stickytoken.cli._run_models import load_for, run_in
from stickytoken.cli.options.computation import EngineOptions
from stickytoken.cli.options.impact import MeasuredOptions, MeasuringOptions
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions
from stickytoken.cli.options.panels import output_option
from stickytoken.cli.options.texts import Source
from stickytoken.cli.output.console import inform
from stickytoken.cli.output.impact import show_impact
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion


@command
def impact(
    source: Source,
    *,
    measured: MeasuredOptions,
    model: RunsModel = None,
    measuring: MeasuringOptions,
    loading: LoadingOptions,
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
