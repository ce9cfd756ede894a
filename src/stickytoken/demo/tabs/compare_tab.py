"""Compare: two runs side by side."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo.context import Context
from stickytoken.demo.shown import FigureSlot, message, one_line_errors, rendered, shown_in_slot
from stickytoken.demo.tabs.events import ON_TABLES
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.reports.comparison import (
    agreement_table,
    compare,
    comparison_figures,
    headlines,
    summary_table,
)
from stickytoken.reports.figures.figure import ReportFigure

TWO_NEEDED = (
    "Comparing takes two runs, and there is {count}. `stickytoken detect MODEL` makes another one in the "
    "folder runs; start the app again there, or name both: `stickytoken demo --run RUN --run RUN`."
)


# Of `comparison_figures`.
FIGURES = 2


def compared(context: Context, first: str | None, second: str | None) -> tuple[str, list[ReportFigure]]:
    """Two runs in words, tables and figures.

    Raises:
        InputError: a run compared with itself.
        RunError: a run that cannot be read.
    """
    if first == second:
        raise InputError("a run is the same as itself: choose two")
    found = compare([context.library.content(label) for label in (first, second)])
    said = rendered(
        "comparison.html.j2",
        headlines=headlines(found),
        notes=found.notes,
        summary=summary_table(found),
        agreements=agreement_table(found),
    )
    return said, comparison_figures(found)


def compare_tab(context: Context) -> None:
    """Lay the tab out, with the first two runs in it."""
    labels = context.library.labels
    if len(labels) < 2:
        gr.HTML(message(TWO_NEEDED.format(count="one" if labels else "none")), elem_id="compare-answer")
        return
    with gr.Row():
        first = gr.Dropdown(labels, value=labels[0], label="Run", interactive=True, min_width=280)
        second = gr.Dropdown(labels, value=labels[1], label="Beside run", interactive=True, min_width=280)
    try:
        said, found = compared(context, labels[0], labels[1])
        figures: list[ReportFigure | None] = list(found)
    except StickyTokenError as error:
        said, figures = message(str(error)), []
    answer = gr.HTML(said, elem_id="compare-answer")
    slots = [FigureSlot(figure) for figure in figures or [None] * FIGURES]

    @one_line_errors
    def respond(one: str, other: str) -> list[Any]:
        line, found = compared(context, one, other)
        return [line, *(part for figure in found for part in shown_in_slot(figure))]

    outputs = [answer, *(part for slot in slots for part in slot.outputs)]
    gr.on([first.input, second.input], respond, [first, second], outputs, **ON_TABLES)
