"""stickytoken repair: write a model without its sticky tokens, and verify it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._command import command
from stickytoken.cli._named_tokens import named_token_ids
from stickytoken.cli._run_models import load_for
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions
from stickytoken.cli.options.panels import output_option
from stickytoken.cli.options.repair import AffectedOptions, RepairOptions
from stickytoken.cli.output.console import inform
from stickytoken.cli.output.progress import progress_bar
from stickytoken.cli.output.repair import show_repair

NOT_VERIFIED = 3


@command
def repair(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    out: Annotated[Path, output_option(help="Folder for the repaired model.")],
    repairing: RepairOptions,
    documents: AffectedOptions,
    model: RunsModel = None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Write a copy of a model without its sticky tokens, and verify it. Exit status 3: not verified.

    Example: stickytoken repair runs/all-MiniLM-L6-v2-profile-0123456789ab --out repaired
    """
    from stickytoken.detection import open_run
    from stickytoken.repairs import repair as run_repair
    from stickytoken.repairs.documents import affected_in, require_documents
    from stickytoken.repairs.result import require_place

    require_place(out)  # before the model is loaded
    require_documents(documents.affected, documents.column)
    opened = open_run(run)
    encoder = load_for(str(run), opened.record, loading, prompting, model)
    given = asdict(repairing) | {"tokens": named_token_ids(encoder, repairing.tokens)}
    with progress_bar() as progress:
        found = run_repair(opened, **given, out=out, encoder=encoder, progress=progress)
        listed = None
        if documents.affected is not None:
            listed = affected_in(documents.affected, documents.column, found, encoder)
    show_repair(found, listed, output_format)
    inform(f"for a report with this: stickytoken report {run}")
    if found.verified is False:
        raise typer.Exit(NOT_VERIFIED)
