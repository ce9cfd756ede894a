"""stickytoken scan: find the documents with copies of sticky tokens, and whether they matter."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._command import command
from stickytoken.cli._endpoints import announced
from stickytoken.cli._run_models import load_for
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import VerbosityOptions
from stickytoken.cli.options.scan import DocumentColumns, EffectOptions, ProcessOptions, ScanOutput
from stickytoken.cli.output.console import inform
from stickytoken.cli.output.scan import show_scan


@command
def scan(
    run: Annotated[Path, typer.Argument(help="Run folder of the model.")],
    documents: Annotated[
        str,
        typer.Argument(
            help="Your documents: a txt file with one per line, a csv, tsv, jsonl or parquet file, a folder, "
            "hub:REPOSITORY or hub:REPOSITORY@SPLIT, or - for stdin: lines, or JSON lines with --column."
        ),
    ],
    *,
    columns: DocumentColumns,
    effects: EffectOptions,
    model: RunsModel = None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    processes: ProcessOptions,
    output: ScanOutput,
    verbosity: VerbosityOptions,
) -> None:
    """Find the documents with copies of sticky tokens, text of special tokens or runs of any word.

    Run the same command again to continue an interrupted scan.

    Example: stickytoken scan runs/all-MiniLM-L6-v2-profile-0123456789ab documents.jsonl --effect
    """
    from stickytoken.detection.run import open_run
    from stickytoken.measurement.atomic import require_writable
    from stickytoken.scanning.scan import ScanOptions, default_out, scan_documents

    chosen = {**asdict(columns), **effects.chosen(), "workers": processes.workers}
    output_format = output.format
    opened = open_run(run)
    folder = output.folder or default_out(opened, documents, ScanOptions(**chosen))
    require_writable(folder)
    if output.out is not None:
        require_writable(output.out.parent)
    encoder = None
    if chosen["effect"] is not None:
        encoder = load_for(str(run), opened.record, loading, prompting, model)
    measured = partial(scan_documents, opened, documents, **chosen)
    with announced(encoder, loading, lambda stand_in, _: measured(encoder=stand_in)) as progress:
        found = measured(encoder=encoder, out=folder, progress=progress)
    show_scan(found, output_format, output.out, output.limit)
    if folder.parent == opened.path:
        inform(f"for a report with this: stickytoken report {opened.path}")
