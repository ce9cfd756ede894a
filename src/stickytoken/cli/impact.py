"""stickytoken impact: what sticky tokens cost."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.errors import reported
from stickytoken.cli.impact_results import show_impact
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, spread
from stickytoken.cli.output import tell
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.run_models import load_for, run_in
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement

if TYPE_CHECKING:
    from stickytoken.vocabulary import Vocabulary


class TextSide(StrEnum):
    """Which texts get copies."""

    QUERY = "query"
    DOCUMENT = "document"
    BOTH = "both"


class Preset(StrEnum):
    """Sets of tasks."""

    PAPER = "paper"


@reported
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
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Task file, BEIR folder or name of an MTEB task; may be given again.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        Preset | None,
        typer.Option(help="paper: the sixteen MTEB tasks of Chen et al. 2025.", show_default=False),
    ] = None,
    intrusion: Annotated[
        str | None,
        typer.Option(
            help="Push random documents into search results: BEIR folder, file of documents, or bundled.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="Token, by vocabulary string or text, or file as of detect; may be given again. "
            "Default: the run's sticky tokens.",
            show_default=False,
        ),
    ] = None,
    copies: Annotated[int, typer.Option(min=1, help="Copies of a token in a text.")] = 8,
    placement: Annotated[Placement, typer.Option(help="Where copies go.")] = Placement.RANDOM,
    side: Annotated[
        TextSide, typer.Option(help="Which texts get copies; document: second sentences, too.")
    ] = TextSide.DOCUMENT,
    insertion: Annotated[
        Insertion, typer.Option(help="ids: the model sees exactly n copies. text: copies are words.")
    ] = Insertion.IDS,
    sticky: Annotated[int, typer.Option(min=1, help="At most so many of the run's sticky tokens.")] = 10,
    benign: Annotated[int, typer.Option(min=1, help="Matched tokens for each sticky one.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of what is random.")] = 2,
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap samples.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 42,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder. Default: impact-<identity> in the run's folder, where report finds it; "
            "runs/<model>-impact-<identity> for a model.",
            show_default=False,
        ),
    ] = None,
    model: o.RunsModel = None,
    *,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Measure what sticky tokens cost. The same command continues a measurement that was cut off.

    Example: stickytoken impact all-MiniLM-L6-v2 --tokens '[CLS]' --task sts.jsonl --intrusion bundled
    """
    from stickytoken.impacts import ImpactSettings, Side
    from stickytoken.impacts import impact as measure
    from stickytoken.vocabulary import categorize

    settings = ImpactSettings(
        copies=copies,
        placement=placement,
        insertion=insertion,
        side=Side(side.value),
        sticky=sticky,
        benign=benign,
        seeds=seeds,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )
    tasks = [*(task or ()), *(_paper_tasks() if preset else ())]
    run = run_in(source, model)
    if run is None and not tokens:
        raise InputError(
            f"{source!r} is no folder of a finished detection: name tokens with --tokens, or run "
            "`stickytoken detect` first and pass its folder"
        )
    encoder = load_for(source, None if run is None else run.record, loading, prompting, model)
    ids = _token_ids(categorize(encoder.tokenizer), tokens) if tokens else None
    with progress_bar() as progress:
        found = measure(
            encoder,
            tasks,
            run=run,
            tokens=ids,
            intrusion=intrusion,
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
    from stickytoken.runs.selection import find_token, token_ids_from_file
    from stickytoken.sentences.tables import TABLE_SUFFIXES

    ids: list[int] = []
    for name in names:
        path = Path(name).expanduser()
        if path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
            ids += token_ids_from_file(vocabulary, path)
        else:
            ids.append(find_token(vocabulary, name))
    return ids
