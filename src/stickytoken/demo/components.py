"""Figures, tables and errors as components of a page."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import gradio as gr
import plotly.graph_objects as go
from markupsafe import escape

from stickytoken.errors import StickyTokenError
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.templating import environment
from stickytoken.visible_text import visible

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def render(template: str, **values: Any) -> str:
    """A template of the app as HTML; what is put in is escaped."""
    return environment("stickytoken.demo").get_template(template).render(**values)


def heading(figure: ReportFigure | None) -> str:
    """The title of a figure."""
    return "" if figure is None else render("title.html.j2", title=figure.title)


def figure_notes(figure: ReportFigure | None) -> str:
    """How to read a figure, and what it shows in words and numbers."""
    return "" if figure is None else render("words.html.j2", figure=figure)


def tables(*named: tuple[str, DataTable]) -> str:
    """Tables that hold something, below each other."""
    return render("tables.html.j2", tables=[(name, table) for name, table in named if table.rows])


def message(text: str) -> str:
    """A paragraph that says what is missing or what to do."""
    return render("message.html.j2", text=text)


def plotly_figure(figure: ReportFigure | None) -> go.Figure | None:
    """The picture, with what the page's script needs to name it and to fit it to a narrow screen."""
    if figure is None:
        return None
    plot = go.Figure(figure.plot)
    plot.update_layout(meta={"alt": visible(f"{figure.title}. {figure.alt}"), "narrow": figure.narrow})
    return plot


class FigureSlot:
    """A place for a figure: its title, the picture, and words and numbers under it.

    Args:
        figure: to begin with; None leaves the place empty.
    """

    def __init__(self, figure: ReportFigure | None) -> None:
        with gr.Column(visible=figure is not None, elem_classes="figure") as self._column:
            self._title = gr.HTML(heading(figure))
            self._plot = gr.Plot(plotly_figure(figure), show_label=False, container=False)
            self._words = gr.HTML(figure_notes(figure))

    @property
    def outputs(self) -> list[Any]:
        """What `slot_contents` fills."""
        return [self._column, self._title, self._plot, self._words]


def slot_contents(figure: ReportFigure | None) -> list[Any]:
    """New contents of a slot; None hides it."""
    return [
        gr.update(visible=figure is not None),
        heading(figure),
        plotly_figure(figure),
        figure_notes(figure),
    ]


def one_line_errors(handler: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Show a `StickyTokenError` as one line in the page; anything else is a defect and goes to stderr."""

    @functools.wraps(handler)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return handler(*args, **kwargs)
        except StickyTokenError as error:
            raise as_alert(str(error)) from error

    return guarded


def as_alert(text: str) -> gr.Error:
    """An alert with one line of text; the page would read it as HTML."""
    line = str(escape(visible(" ".join(text.split()))))
    return gr.Error(line, duration=None, title="This cannot be done", print_exception=False)
