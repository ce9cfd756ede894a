"""stickytoken repair: write a model without its sticky tokens, and verify it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli._loading import command, load_for, named_token_ids
from stickytoken.cli.options.method import AffectedOptions, RepairOptions
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option
from stickytoken.cli.output.console import inform, print_columns, print_json, print_line
from stickytoken.cli.output.progress import progress_bar
from stickytoken.methods.entry import Column

if TYPE_CHECKING:
    from stickytoken.repairs import Repair
    from stickytoken.repairs.documents import Affected

NOT_VERIFIED = 3

_TOKENS = (
    Column("token_id", "id"),
    Column("token", "token"),
    Column("strategy", "strategy"),
    Column("deviations_before", "lift before (SD)", 2),
    Column("deviations_after", "lift after (SD)", 2),
    Column("contraction_before", "meaning lost before", 2),
    Column("contraction_after", "meaning lost after", 2),
    Column("verdict_after", "verdict"),
)


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
    _show_repair(found, listed, output_format)
    inform(f"for a report with this: stickytoken report {run}")
    if found.verified is False:
        raise typer.Exit(NOT_VERIFIED)


def _show_repair(repair: Repair, affected: Affected | None, output_format: Format) -> None:
    """Print a repair and the documents that must be encoded again, as tables or as one JSON document."""
    if output_format is Format.JSON:
        listed = None if affected is None else affected.summary()
        print_json(repair.summary() | {"affected": listed})
        return
    record = repair.record
    print_columns(f"Repaired tokens of {record.model}", _TOKENS, repair.tokens)
    if record.verification is not None:
        ordinary = record.verification.ordinary_contraction
        print_line(f"SD: lift beyond an ordinary token's; meaning lost by ordinary copies: {ordinary:.2f}")
        for check in record.verification.checks:
            print_line(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.finding}")
    switched_off = "" if record.verification is not None else " (--no-verify)"
    print_line(f"{record.state}{switched_off}; repaired model: {repair.path}; {record.seconds:,.0f} s")
    if affected is not None:
        print_line(
            f"{affected.count:,} of {affected.documents:,} documents must be encoded again: {affected.file}"
        )
    for note in record.notes:
        inform(f"note: {note}")
