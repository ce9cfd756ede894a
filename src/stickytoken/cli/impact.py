"""stickytoken impact: what sticky tokens cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported_and_continued
from stickytoken.cli.impact_options import MeasuredOptions, MeasuringOptions
from stickytoken.cli.impact_results import show_impact
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, spread
from stickytoken.cli.output import tell
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.run_models import load_for, run_in
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.vocabulary.categories import Vocabulary


@reported_and_continued
@spread
def impact(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL",
            help="Folder of a finished detection, or a model together with --tokens.",
            show_default=False,
        ),
    ],
    *,
    measured: MeasuredOptions,
    measuring: MeasuringOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder. Default: impact-<identity> in the run's folder, where report finds it; "
            "runs/<model>-impact-<identity> for a model.",
            show_default=False,
        ),
    ] = None,
    model: o.RunsModel = None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Measure what sticky tokens cost. The same command continues a measurement that was cut off.

    Example: stickytoken impact all-MiniLM-L6-v2 --tokens '[CLS]' --task sts.jsonl --intrusion bundled
    """
    from stickytoken.impacts import ImpactSettings, Side
    from stickytoken.impacts import impact as measure
    from stickytoken.vocabulary.categories import categorize

    settings = ImpactSettings(**asdict(measuring) | {"side": Side(measuring.side.value)})
    tasks = [*(measured.task or ()), *(_paper_tasks() if measured.preset else ())]
    run = run_in(source, model)
    if run is None and not measured.tokens:
        raise InputError(
            f"{source!r} is no folder of a finished detection: name tokens with --tokens, or run "
            "`stickytoken detect` first and pass its folder"
        )
    encoder = load_for(source, None if run is None else run.record, loading, prompting, model)
    ids = _token_ids(categorize(encoder.tokenizer), measured.tokens) if measured.tokens else None
    with progress_bar() as progress:
        found = measure(
            encoder,
            tasks,
            run=run,
            tokens=ids,
            intrusion=measured.intrusion,
            settings=settings,
            out=out,
            progress=progress,
        )
    show_impact(found, output_format)
    if run is not None and found.path.parent == run.path:
        tell(f"`stickytoken report {run.path}` shows it beside what was detected")
    if found.failed:
        raise InputError(
            "not run: " + "; ".join(f"{name} ({reason})" for name, reason in found.failed.items())
        )


def _paper_tasks() -> tuple[str, ...]:
    from stickytoken.impacts.mteb_tasks import PAPER_TASKS

    return PAPER_TASKS


def _token_ids(vocabulary: Vocabulary, names: list[str]) -> list[int]:
    from stickytoken.corpora.tables import TABLE_SUFFIXES
    from stickytoken.detection.selection import find_token, token_ids_from_file

    ids: list[int] = []
    for name in names:
        path = Path(name).expanduser()
        if path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
            ids += token_ids_from_file(vocabulary, path)
        else:
            ids.append(find_token(vocabulary, name))
    return ids
