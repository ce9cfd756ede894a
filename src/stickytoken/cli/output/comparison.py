"""Print a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import inform, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.comparisons import Comparison


def print_comparison(found: Comparison) -> None:
    """Print one row per run, what can be compared, and how to read it."""
    from stickytoken.comparisons.result import HEADINGS, shown_reason, shown_rows

    print_table("The runs, in the order given", HEADINGS, shown_rows(found))
    answers, reasons = found.comparability
    print_line("; ".join(f"{measure.value}: {answer.value}" for measure, answer in answers.items()))
    for reason in reasons:
        print_line(f"  {reason.answer.value}: {shown_reason(reason)}")
    print_line(found.basis)
    for note in found.notes:
        inform(f"note: {note}")
