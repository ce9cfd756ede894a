"""Figures, tables and errors as components of the page."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import wraps
from typing import Any, ParamSpec

import gradio as gr
import plotly.graph_objects as go

from stickytoken.errors import StickyTokenError
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.templating import environment
from stickytoken.validation import visible

_Arguments = ParamSpec("_Arguments")
_LOG = logging.getLogger(__name__)
_LINE = 500


def render(template: str, **values: Any) -> str:
    """Fill a template of the app; all values are escaped."""
    return environment("stickytoken.demo").get_template(template).render(**values)


def heading(figure: ReportFigure | None) -> str:
    """Return the title of a figure as HTML."""
    return "" if figure is None else render("title.html.j2", title=figure.title)


def figure_notes(figure: ReportFigure | None) -> str:
    """Return the caption, description and data table of a figure as HTML."""
    return "" if figure is None else render("words.html.j2", figure=figure)


def tables(*named: tuple[str, DataTable]) -> str:
    """Return the tables that are not empty as HTML."""
    return render("tables.html.j2", tables=[(name, table) for name, table in named if table.rows])


def message(text: str) -> str:
    """Return a paragraph that says what is missing or what to do."""
    return render("message.html.j2", text=text)


def error_message(text: str) -> str:
    """Return a paragraph that says what failed."""
    return render("error.html.j2", text=text)


def plotly_figure(figure: ReportFigure | None) -> go.Figure | None:
    """Return the plot, with the data that the page's script needs to label and resize it."""
    if figure is None:
        return None
    plot = go.Figure(figure.plot)
    plot.update_layout(meta={"alt": visible(f"{figure.title}. {figure.alt}"), "narrow": figure.narrow})
    return plot


def figure_slots(count: int) -> list[Any]:
    """Make places for figures, empty at first: title, plot, description and data table of each."""
    slots: list[Any] = []
    for _ in range(count):
        with gr.Column(visible=False, elem_classes="figure") as column:
            slots += [column, gr.HTML(""), gr.Plot(show_label=False, container=False), gr.HTML("")]
    return slots


def slot_contents(figures: Iterable[ReportFigure | None]) -> list[Any]:
    """Return new contents of one slot per figure; None hides a slot."""
    return [
        part
        for figure in figures
        for part in (
            gr.update(visible=figure is not None),
            heading(figure),
            plotly_figure(figure),
            figure_notes(figure),
        )
    ]


def count_field(
    name: str, least: int, most: int, value: int | None = None, interactive: bool | None = None
) -> gr.Number:
    """Make a field for a whole number.

    Not a slider: Gradio's sliders put another number in the place of one that is outside their range, and
    the next click would run what nobody asked for.
    """
    return gr.Number(
        value, minimum=least, maximum=most, step=1, label=name, info=f"{least} to {most}", min_width=150,
        interactive=interactive,
    )  # fmt: skip


class Once:
    """Values of components that the first visitor computes and later ones get a copy of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: list[Any] | None = None

    def get(self, compute: Callable[[], list[Any]]) -> list[Any]:
        """Return the values; an error is raised to whoever asked, and the next one tries again."""
        with self._lock:
            if self._values is None:
                self._values = compute()
            return deepcopy(self._values)  # Gradio modifies updates


def text_fields(*labels: str) -> list[gr.Textbox]:
    """Make fields for texts in a row, which wait for the model."""
    with gr.Row():
        return [
            gr.Textbox(label=label, lines=2, max_lines=6, min_width=280, interactive=False)
            for label in labels
        ]


def placement_field(interactive: bool = False) -> gr.Radio:
    """Make the choice of where copies go."""
    places = [
        ("before (prefix)", "prefix"),
        ("after (suffix)", "suffix"),
        ("between words (random)", "random"),
    ]
    return gr.Radio(
        places, value="suffix", label="Where the copies go", min_width=220, interactive=interactive
    )


def show_errors(
    handler: Callable[_Arguments, list[Any]], blank: Callable[[str], list[Any]]
) -> Callable[_Arguments, list[Any]]:
    """Make an error replace the old answer, so that none stands under a request that failed.

    A `StickyTokenError` is one line in the page and one in the log. Anything else is a defect: its traceback
    goes to the log, and the page says where to look.
    """

    @functools.wraps(handler)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> list[Any]:
        try:
            return handler(*args, **kwargs)
        except StickyTokenError as error:
            line = one_line(str(error))
            _LOG.warning("refused: %s", line)
            return blank(error_message(line))
        except Exception:  # noqa: BLE001 - a defect must not leave an old answer behind
            _LOG.exception("a defect of the app")
            return blank(error_message("The app failed; the terminal that it runs in shows where."))

    return guarded


def one_line(text: str) -> str:
    """Return text as one visible line of limited length."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= _LINE else f"{line[:_LINE]} ..."


# Handlers check their inputs themselves: what Gradio's components refuse, they refuse with a traceback in the
# log, and the old answer stays in the page.
_CHECKED_BY_HANDLER: dict[str, Any] = {"preprocess": False, "api_visibility": "private"}

# Events that need the model share one queue, one at a time; a newer request replaces one that waits.
ON_MODEL: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "trigger_mode": "always_last",
    "show_progress": "minimal",
}
# Events that only read tables in memory.
ON_TABLES: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "tables",
    "concurrency_limit": 4,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
}
# Events that wait until the model is loaded, then return what is computed once for all visitors.
ON_STARTUP: dict[str, Any] = _CHECKED_BY_HANDLER | {
    "concurrency_id": "startup",
    "concurrency_limit": 16,
    "trigger_mode": "once",
    "show_progress": "minimal",
}


def on_first_opening(
    tab: gr.Tab, handler: Callable[..., Any], inputs: list[Any], outputs: list[Any], **how: Any
) -> None:
    """Run an event when a visitor opens a tab for the first time, and never again."""
    seen = gr.State(False)

    @wraps(handler)
    def opened(was_seen: bool, *values: Any) -> list[Any]:
        return [True, *([gr.skip()] * len(outputs) if was_seen else handler(*values))]

    # Gradio reads the number of inputs and the wish for progress from the signature.
    signature = inspect.signature(handler)
    first = inspect.Parameter("was_seen", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(opened)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    tab.select(opened, [seen, *inputs], [seen, *outputs], **how)
