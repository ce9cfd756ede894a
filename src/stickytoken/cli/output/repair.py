"""Print a repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.options.output import Format
from stickytoken.cli.output.console import inform, print_json, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.repairs import Repair
    from stickytoken.repairs.documents import Affected

_TOKENS = (
    *("id", "token", "strategy", "lift before (SD)", "lift after (SD)"),
    *("meaning lost before", "meaning lost after", "verdict"),
)


def show_repair(repair: Repair, affected: Affected | None, output_format: Format) -> None:
    """Print a repair and the documents that must be encoded again, as tables or as one JSON document."""
    if output_format is Format.JSON:
        listed = None if affected is None else affected.summary()
        print_json(repair.summary() | {"affected": listed})
        return
    record = repair.record
    rows = [
        (
            token.token_id,
            token.token,
            token.strategy,
            None if token.before is None else token.before.deviations,
            None if token.after is None else token.after.deviations,
            None if token.before is None else token.before.contraction,
            None if token.after is None else token.after.contraction,
            None if token.after is None else token.after.verdict,
        )
        for token in record.tokens
    ]
    print_table(f"Repaired tokens of {record.model}", _TOKENS, rows, (None, None, None, 2, 2, 2, 2, None))
    if record.verification is not None:
        ordinary = record.verification.ordinary_contraction
        print_line(f"SD: lift beyond an ordinary token's; meaning lost by ordinary copies: {ordinary:.2f}")
        for check in record.verification.checks:
            print_line(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.finding}")
    verdict = {True: "verified", False: "NOT VERIFIED", None: "not verified (--no-verify)"}[repair.verified]
    print_line(f"{verdict}; repaired model: {repair.path}; {record.seconds:,.0f} s")
    if affected is not None:
        print_line(
            f"{affected.count:,} of {affected.documents:,} documents must be encoded again: {affected.file}"
        )
    for note in record.notes:
        inform(f"note: {note}")
