"""Compare: two runs side by side."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.comparisons import compare
from stickytoken.demo._components import (
    ON_TABLES,
    figure_slots,
    message,
    on_first_opening,
    render,
    show_errors,
    slot_contents,
)
from stickytoken.demo.context import RunLibrary
from stickytoken.errors import InputError
from stickytoken.reports.comparison import (
    agreement_table,
    answers,
    comparability_table,
    comparison_figures,
    headlines,
    summary_table,
)
from stickytoken.reports.figures.figure import ReportFigure

TWO_RUNS_NEEDED = (
    "A comparison needs two runs, and there is {count}. Make another with `stickytoken detect MODEL`, then "
    "start the app with both: `stickytoken demo --run RUN --run RUN`."
)


# The most figures that `comparison_figures` returns.
FIGURES = 2


def compared(library: RunLibrary, first: object, second: object) -> tuple[str, list[ReportFigure]]:
    """Return the comparison of two runs in words, tables and figures."""
    if first == second:
        raise InputError("both runs are the same: choose two different ones")
    contents = [library.content(label) for label in (first, second)]
    found = compare([content.run or content.path for content in contents])
    said = render(
        "comparison.html.j2",
        headlines=headlines(found),
        notes=found.notes,
        summary=summary_table(found),
        answers=answers(found),
        comparability=comparability_table(found),
        agreements=agreement_table(found),
    )
    return said, comparison_figures(found)


def compare_tab(library: RunLibrary, own_tab: gr.Tab) -> None:
    """Lay out the tab; its first opening compares the first two runs."""
    labels = library.labels
    if len(labels) < 2:
        gr.HTML(message(TWO_RUNS_NEEDED.format(count="one" if labels else "none")), elem_id="compare-answer")
        return
    with gr.Row():
        first = gr.Dropdown(labels, value=labels[0], label="Run", interactive=True, min_width=280)
        second = gr.Dropdown(labels, value=labels[1], label="Compared with", interactive=True, min_width=280)
    outputs = [gr.HTML("", elem_id="compare-answer"), *figure_slots(FIGURES)]

    def respond(one: object, other: object) -> list[Any]:
        found, figures = compared(library, one, other)
        return [found, *slot_contents([*figures, *[None] * (FIGURES - len(figures))])]

    def blank(error: str) -> list[Any]:
        return [error, *slot_contents([None] * FIGURES)]

    answered = show_errors(respond, blank)
    gr.on([first.input, second.input], answered, [first, second], outputs, **ON_TABLES)
    on_first_opening(own_tab, answered, [first, second], outputs, **ON_TABLES)
