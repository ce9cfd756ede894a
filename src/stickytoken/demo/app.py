"""Build the page: its tabs and its style."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import gradio as gr

from stickytoken.demo._components import one_line, render
from stickytoken.demo.context import WAITING, Startup
from stickytoken.demo.tabs.compare_tab import compare_tab
from stickytoken.demo.tabs.explain_tab import explain_tab
from stickytoken.demo.tabs.explore_tab import explore_tab
from stickytoken.demo.tabs.repair_tab import repair_tab
from stickytoken.demo.tabs.try_tab import try_tab
from stickytoken.demo.tabs.why_tab import why_tab
from stickytoken.reports.figures.figure import template
from stickytoken.reports.templating import packaged
from stickytoken.validation import visible

_LOG = logging.getLogger(__name__)
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_MONO = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "Noto Sans Mono", "monospace"]

# Text has a contrast of at least 4.5 to 1 in both schemes.
_COLORS = {
    "button_primary_background_fill": "#00609a",
    "button_primary_background_fill_dark": "#00609a",
    "button_primary_background_fill_hover": "#004a78",
    "button_primary_background_fill_hover_dark": "#004a78",
    "button_primary_text_color": "#ffffff",
    "button_primary_text_color_dark": "#ffffff",
    "block_info_text_color": "#57606f",
    "block_info_text_color_dark": "#a3adbb",
    "block_label_text_color": "#3b4350",
    "block_label_text_color_dark": "#d0d6de",
    "block_title_text_color": "#3b4350",
    "block_title_text_color_dark": "#d0d6de",
}


@dataclass(frozen=True)
class App:
    """A page that is ready to be served.

    Attributes:
        blocks: its components.
        style: theme, style sheet and script, as `launch` takes them.
    """

    blocks: gr.Blocks
    style: dict[str, Any]


def make_app(startup: Startup, shared: bool = False) -> App:
    """Build the page. Parts that need the model are filled in once it is loaded."""
    model = visible(startup.model_name)
    with _CheckedBlocks(
        title=f"Sticky tokens of {model}", analytics_enabled=False, fill_width=False
    ) as blocks:
        gr.HTML(
            render("welcome.html.j2", model=model, left_out=startup.library.left_out, shared=shared),
            elem_id="welcome",
        )
        with gr.Tabs():
            with gr.Tab("Try"):
                try_tab(startup, blocks)
            with gr.Tab("Why") as asking:
                why_tab(startup, blocks, asking)
            with gr.Tab("Explore") as exploring:
                explore_tab(startup, exploring)
            with gr.Tab("Explain") as explaining:
                explain_tab(startup, blocks, explaining)
            with gr.Tab("Repair"):
                repair_tab(startup, blocks)
            with gr.Tab("Compare") as comparing:
                compare_tab(startup.library, comparing)
    blocks.queue(max_size=WAITING)
    return App(blocks, _style())


class _CheckedBlocks(gr.Blocks):
    """Blocks that answer a malformed request with one line."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Read the inputs of an event."""
        if len(inputs) != len(block_fn.inputs):
            raise _malformed(f"{len(inputs)} values, and the event takes {len(block_fn.inputs)}")
        try:
            return await super().preprocess_data(block_fn, inputs, *args, **kwargs)
        except Exception as error:
            raise _malformed(str(error)) from error

    async def call_function(self, *args: Any, **kwargs: Any) -> Any:
        """Run an event."""
        try:
            return await super().call_function(*args, **kwargs)
        except Exception as error:
            raise _malformed(str(error)) from error


def _malformed(reason: str) -> gr.Error:
    _LOG.warning("refused: a request that the page does not send: %s", one_line(reason))
    return gr.Error(
        "The request does not fit this page: reload it.", title="Not computed", print_exception=False
    )


def _style() -> dict[str, Any]:
    themes = json.dumps({name: template(name) for name in ("light", "dark")})
    script = packaged("app.js", "stickytoken.demo").replace("__THEMES__", themes)
    return {
        # System fonts, so that nothing is fetched.
        "theme": gr.themes.Default(primary_hue="blue", font=_FONTS, font_mono=_MONO).set(**_COLORS),
        "css": packaged("pieces.css") + packaged("app.css", "stickytoken.demo"),
        "head": f"<script>{script}</script>",
    }
