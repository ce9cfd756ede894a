"""Components of the page (figures, tables, fields, errors), and options of its events."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, ParamSpec

import gradio as gr
import plotly.graph_objects as go

from stickytoken.errors import StickyTokenError
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import environment
from stickytoken.validation import visible

_Arguments = ParamSpec("_Arguments")
_LOG = logging.getLogger(__name__)
# Maximum number of characters to show of an error, on the page and in the log.
_LONGEST_LINE = 500


def render(template: str, **values: Any) -> str:
    """Render a template of the app as HTML."""
    return environment("stickytoken.demo").get_template(template).render(**values)


def table(title: str, content: DataTable) -> str:
    """Render a table with its title as HTML."""
    return render("table.html.j2", title=title, content=content)


def message(text: str) -> str:
    """Render a message as HTML; text between backticks becomes code."""
    return render("message.html.j2", text=text)


def lead(text: str) -> str:
    """Render the sentence below the name of a tab."""
    return render("lead.html.j2", text=text)


def add_figure_slots(count: int) -> list[Any]:
    """Add hidden placeholders for figures to the page; `fill_slots` fills the placeholders.

    Returns:
        The components of all placeholders. Each placeholder has four components: a column, and in this column
        the title, the plot and the explanatory text.
    """
    slots: list[Any] = []
    for _ in range(count):
        with gr.Column(visible=False, elem_classes="figure") as column:
            slots += [column, gr.HTML(""), gr.Plot(show_label=False, container=False), gr.HTML("")]
    return slots


def fill_slots(figures: Iterable[ReportFigure | None]) -> list[Any]:
    """Return the values of the components of `add_figure_slots`.

    Each figure fills one placeholder, of four components: a column, and in it the title, the plot and the
    words below. A placeholder whose figure is None is hidden.
    """
    contents: list[Any] = []
    for figure in figures:
        if figure is None:
            hidden_column = gr.update(visible=False)
            contents += [hidden_column, "", None, ""]
            continue
        plot = go.Figure(figure.plot)
        # The page's script reads `meta` to label and resize the plot. Control characters of tokens are shown
        # by visible ones.
        plot.update_layout(meta={"alt": visible(f"{figure.title}. {figure.alt}"), "narrow": figure.narrow})
        title = render("title.html.j2", title=figure.title)
        words = render("words.html.j2", figure=figure)
        visible_column = gr.update(visible=True)
        contents += [visible_column, title, plot, words]
    return contents


def text_fields(*labels: str) -> list[gr.Textbox]:
    """Make a row of text fields for sentences, which are read-only until the model is loaded."""
    with gr.Row():
        return [
            gr.Textbox(label=label, lines=2, max_lines=6, min_width=280, interactive=False)
            for label in labels
        ]


def show_errors(
    handler: Callable[_Arguments, list[Any]], replace_outputs: Callable[[str], list[Any]]
) -> Callable[_Arguments, list[Any]]:
    """Return a handler that shows an error in place of the previous answer.

    Args:
        handler: Handler of an event.
        replace_outputs: Function that takes an error as HTML, and returns the handler's outputs with the
            error in place of an answer.

    Returns:
        The guarded handler. A `StickyTokenError` is shown and logged on one line; any other error is a bug
        and is logged with its traceback.
    """

    @functools.wraps(handler)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> list[Any]:
        try:
            return handler(*args, **kwargs)
        except StickyTokenError as error:
            line = one_line(str(error))
            _LOG.warning("refused: %s", line)
        except Exception:  # noqa: BLE001 - a defect must not leave an old answer behind
            line = "The app failed; the terminal that it runs in shows where."
            _LOG.exception("a defect of the app")
        return replace_outputs(render("error.html.j2", text=line))

    return guarded


def one_line(text: str) -> str:
    """Return a text on one line, escaped by `visible` and shortened if it is very long."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."


class Once:
    """Component values that are computed for the first visitor and copied for later visitors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: list[Any] | None = None

    def get(self, compute: Callable[[], list[Any]]) -> list[Any]:
        """Return a copy of the values. Only the first call computes the values."""
        with self._lock:
            if self._values is None:
                self._values = compute()
            return deepcopy(self._values)  # Gradio modifies the values that it receives


def on_first_visit(was_visited: bool, answer: Callable[[], list[Any]], *, output_count: int) -> list[Any]:
    """Return what a tab shows when a visitor opens it: an example on the first visit, else no change.

    Args:
        was_visited: Whether this visitor has opened the tab before.
        answer: Function that returns values for the output components on the first visit.
        output_count: Number of the tab's output components.

    Returns:
        True, as the new value of ``was_visited``, followed by a value for each output component. On a later
        visit, these values leave the components unchanged.
    """
    is_visited = True
    if was_visited:
        unchanged = [gr.skip()] * output_count
        return [is_visited, *unchanged]
    return [is_visited, *answer()]


def _event_options(
    queue_name: str, concurrency_limit: int, trigger_mode: str, show_progress: str
) -> dict[str, Any]:
    """Return options of Gradio for events whose handlers wait in the same queue."""
    return {
        # The handlers check their inputs. Gradio's own check would answer invalid ones with a traceback.
        "preprocess": False,
        "api_visibility": "private",
        "concurrency_id": queue_name,
        "concurrency_limit": concurrency_limit,
        "trigger_mode": trigger_mode,
        "show_progress": show_progress,
    }


# Handlers that use the model run one at a time, and a newer event replaces an event that is still waiting.
MODEL_QUEUE = _event_options("model", 1, "always_last", "minimal")
# Events whose handlers only read tables in memory.
TABLE_QUEUE = _event_options("tables", 4, "always_last", "hidden")
# Events that wait until the model is loaded; their result is computed once for all visitors.
STARTUP_QUEUE = _event_options("startup", 16, "once", "minimal")
