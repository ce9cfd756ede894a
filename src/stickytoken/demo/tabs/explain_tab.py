"""Explain: what the model does with copies of one token, beside benign ones."""

from __future__ import annotations

import threading
from copy import deepcopy
from typing import Any

import gradio as gr

from stickytoken.demo.components import FigureSlot, one_line_errors, render, slot_contents, tables
from stickytoken.demo.examples import worked_example
from stickytoken.demo.explaining import (
    FIGURES,
    chosen_settings,
    explain_on,
    figures_of,
    findings_table,
    neighbours_table,
    pairs_table,
)
from stickytoken.demo.inputs import COPIES, EXPLAIN_BENIGN, EXPLAIN_CARRIERS
from stickytoken.demo.naming import named_token
from stickytoken.demo.startup import Startup
from stickytoken.demo.tabs.events import ON_MODEL, ON_STARTUP, on_first_opening
from stickytoken.demo.tabs.try_tab import NAMING, PLACES
from stickytoken.explanation import Explanation
from stickytoken.explanation.settings import LEAST_BENIGN
from stickytoken.insertion import Placement
from stickytoken.measurement.progress import Progress, ProgressCallback, ignore_progress

_COPIES, _CARRIERS, _BENIGN = 8, 8, 8


class Explain:
    """What the tab shows; whatever it is asked for waits until the model is loaded.

    Args:
        startup: what there is of the app.
    """

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._example: list[Any] | None = None
        self._lock = threading.Lock()

    @property
    def example_name(self) -> str:
        """What a visitor may type to name the token of the worked example."""
        context = self._startup.context()
        example = worked_example(context.content, context.model.vocabulary, context.corpus)
        return context.name_of(example.token_id)

    def explained(
        self,
        name: str,
        placement: str,
        copies: float,
        carriers: float,
        benign: float,
        attribution: bool,
        progress: ProgressCallback,
    ) -> list[Any]:
        """Explain a token: words, figures and tables.

        Raises:
            InputError: something that cannot be explained; says what.
            ModelError: an encoder that nobody can look into.
            EncodingError: a text without a usable vector.
        """
        settings = chosen_settings(copies, carriers, benign, placement, attribution)
        context = self._startup.context()
        token = named_token(context.model.vocabulary, name)
        return _parts(explain_on(context.model, token, context.run, settings, progress))

    def example(self, progress: ProgressCallback) -> list[Any]:
        """The worked example; computed once, when somebody first opens the tab."""
        with self._lock:
            if self._example is None:
                self._example = self.explained(
                    self.example_name, Placement.SUFFIX.value, _COPIES, _CARRIERS, _BENIGN, False, progress
                )
            return deepcopy(self._example)  # Gradio takes updates apart


def explain_tab(startup: Startup, page: gr.Blocks, own_tab: gr.Tab) -> None:
    """Lay the tab out; its first opening computes the worked example.

    Args:
        startup: what there is of the app.
        page: that the tab is in.
        own_tab: the tab itself.
    """
    tab = Explain(startup)
    inputs = _inputs()
    button = gr.Button("Explain", variant="primary", interactive=False)
    said = gr.HTML("", elem_id="explain-answer", min_height=80)
    slots = [FigureSlot(None) for _ in range(FIGURES)]
    details = gr.HTML("", elem_id="explain-tables")
    outputs = [said, *(part for slot in slots for part in slot.outputs), details]

    @one_line_errors
    def respond(
        name: str,
        place: str,
        count: float,
        texts: float,
        others: float,
        attributed: bool,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        return tab.explained(name, place, count, texts, others, attributed, told(progress))

    @one_line_errors
    def opened(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - how gradio asks for it
        return tab.example(told(progress))

    @one_line_errors
    def started() -> list[Any]:
        return [gr.update(value=tab.example_name, interactive=True), gr.update(interactive=True)]

    page.load(started, None, [inputs[0], button], **ON_STARTUP)
    full = ON_MODEL | {"show_progress": "full", "show_progress_on": [said]}
    gr.on([button.click, inputs[0].submit], respond, inputs, outputs, **full)
    on_first_opening(own_tab, opened, [], outputs, **full)


def _inputs() -> list[Any]:
    """What a visitor sets, in the order of `Explain.explained`; the token not yet."""
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, min_width=180, interactive=False)
        placement = gr.Radio(PLACES, value=Placement.SUFFIX.value, label="Where the copies go", min_width=220)
        copies = gr.Slider(1, COPIES, value=_COPIES, step=1, label="Copies", min_width=150)
    with gr.Row():
        carriers = gr.Slider(2, EXPLAIN_CARRIERS, value=_CARRIERS, step=1, label="Texts", min_width=150)
        benign = gr.Slider(
            LEAST_BENIGN,
            EXPLAIN_BENIGN,
            value=_BENIGN,
            step=1,
            label="Benign tokens",
            min_width=150,
        )
    attribution = gr.Checkbox(
        value=False, label="Attribution", info="which tokens make up the similarity; slow"
    )
    return [token, placement, copies, carriers, benign, attribution]


def told(progress: gr.Progress | None) -> ProgressCallback:
    """Progress of a computation as progress in the page."""
    if progress is None:
        return ignore_progress

    def tell(step: Progress) -> None:
        progress((step.done, max(1, step.total)), desc=step.stage)

    return tell


def _parts(found: Explanation) -> list[Any]:
    """What the tab's outputs become."""
    token = found.tokens[0]
    said = render(
        "explanation.html.j2",
        verdict=token.verdict,
        settings=found.settings,
        carriers=found.carriers,
        source=found.source,
        pooling=found.pooling or "unknown",
        benign=found.benign["benign"].to_list(),
        notes=found.notes,
    )
    details = tables(
        ("What differs", findings_table(found)),
        ("Similarity as a sum over tokens", pairs_table(found)),
        ("Nearest embeddings", neighbours_table(found)),
    )
    return [said, *(part for figure in figures_of(found) for part in slot_contents(figure)), details]
