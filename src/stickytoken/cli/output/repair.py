"""Print a repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.options.output import Format
from stickytoken.cli.output.console import inform, print_columns, print_json, print_line
from stickytoken.methods.descriptions import Column

if TYPE_CHECKING:
    from stickytoken.repairs import Repair
    from stickytoken.repairs.documents import Affected

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


def show_repair(repair: Repair, affected: Affected | None, output_format: Format) -> None:
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
