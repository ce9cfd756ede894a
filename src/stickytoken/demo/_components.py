"""Figures, tables, fields and errors as components of the page, and how its events are run."""

from __future__ import annotations

import functools
import inspect
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
_LINE = 500


def render(template: str, **values: Any) -> str:
    return environment("stickytoken.demo").get_template(template).render(**values)


def tables(*named: tuple[str, DataTable]) -> str:
    return render("tables.html.j2", tables=[(name, table) for name, table in named if table.rows])


def message(text: str) -> str:
    return render("message.html.j2", text=text)


def lead(text: str) -> str:
    return render("lead.html.j2", text=text)


def figure_slots(count: int) -> list[Any]:
    slots: list[Any] = []
    for _ in range(count):
        with gr.Column(visible=False, elem_classes="figure") as column:
            slots += [column, gr.HTML(""), gr.Plot(show_label=False, container=False), gr.HTML("")]
    return slots


def slot_contents(figures: Iterable[ReportFigure | None]) -> list[Any]:
    contents: list[Any] = []
    for figure in figures:
        if figure is None:
            contents += [gr.update(visible=False), "", None, ""]
            continue
        # The page's script needs what is in `meta` to label and resize the plot.
        plot = go.Figure(figure.plot)
        plot.update_layout(meta={"alt": visible(f"{figure.title}. {figure.alt}"), "narrow": figure.narrow})
        title, words = render("title.html.j2", title=figure.title), render("words.html.j2", figure=figure)
        contents += [gr.update(visible=True), title, plot, words]
    return contents


def text_fields(*labels: str) -> list[gr.Textbox]:
    with gr.Row():
        return [
            gr.Textbox(label=label, lines=2, max_lines=6, min_width=280, interactive=False)
            for label in labels
        ]


def count_field(
    name: str, least: int, most: int, value: int | None = None, interactive: bool | None = None
) -> gr.Number:
    """Not a slider: Gradio's sliders put another number in the place of one outside their range."""
    return gr.Number(
        value, minimum=least, maximum=most, step=1, label=name, info=f"{least} to {most}", min_width=150,
        interactive=interactive,
    )  # fmt: skip


def placement_field(interactive: bool = False) -> gr.Radio:
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
    """Make an error replace the old answer; what is no `StickyTokenError` is a defect, and logged as one."""

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
        return blank(render("error.html.j2", text=line))

    return guarded


def one_line(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if len(line) <= _LINE else f"{line[:_LINE]} ..."


class Once:
    """Values of components that the first visitor computes and later ones get a copy of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: list[Any] | None = None

    def get(self, compute: Callable[[], list[Any]]) -> list[Any]:
        with self._lock:
            if self._values is None:
                self._values = compute()
            return deepcopy(self._values)  # Gradio modifies updates


def _events(name: str, limit: int, trigger: str, progress: str) -> dict[str, Any]:
    """Handlers check their inputs themselves: Gradio's components would refuse with a traceback."""
    return {
        "preprocess": False,
        "api_visibility": "private",
        "concurrency_id": name,
        "concurrency_limit": limit,
        "trigger_mode": trigger,
        "show_progress": progress,
    }


# Events that need the model run one at a time; a newer request replaces one that waits.
ON_MODEL = _events("model", 1, "always_last", "minimal")
# Events that only read tables in memory.
ON_TABLES = _events("tables", 4, "always_last", "hidden")
# Events that wait until the model is loaded, then return what is computed once for all visitors.
ON_STARTUP = _events("startup", 16, "once", "minimal")


def on_first_opening(
    tab: gr.Tab, handler: Callable[..., Any], inputs: list[Any], outputs: list[Any], **how: Any
) -> None:
    seen = gr.State(False)

    @functools.wraps(handler)
    def opened(was_seen: bool, *values: Any) -> list[Any]:
        return [True, *([gr.skip()] * len(outputs) if was_seen else handler(*values))]

    # Gradio reads the number of inputs and the wish for progress from the signature.
    signature = inspect.signature(handler)
    first = inspect.Parameter("was_seen", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(opened)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    tab.select(opened, [seen, *inputs], [seen, *outputs], **how)
