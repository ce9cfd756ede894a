"""Explain: what the model does with copies of one token, compared with benign tokens."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo._answers import (
    FIGURES,
    chosen_settings,
    explain_on,
    figures_of,
    findings_table,
    neighbours_table,
    pairs_table,
    worked_example,
)
from stickytoken.demo._components import (
    ON_MODEL,
    ON_STARTUP,
    Once,
    count_field,
    figure_slots,
    on_first_opening,
    placement_field,
    render,
    show_errors,
    slot_contents,
    tables,
)
from stickytoken.demo.context import COPIES, EXPLAIN_BENIGN, EXPLAIN_CARRIERS, Startup, named_token
from stickytoken.demo.tabs.try_tab import NAMING
from stickytoken.explanation import Explanation
from stickytoken.insertion import Placement
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.vocabulary import LEAST_BENIGN

_COPIES, _CARRIERS, _BENIGN = 8, 8, 8


class Explain:
    """Contents of the tab. Requests wait until the model is loaded."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._example = Once()

    @property
    def example_name(self) -> str:
        """The name of the token in the worked example."""
        context = self._startup.context()
        example = worked_example(context.content, context.model.vocabulary, context.corpus)
        return context.name_of(example.token_id)

    def explained(
        self,
        name: object,
        placement: object,
        copies: object,
        carriers: object,
        benign: object,
        attribution: object,
        progress: ProgressCallback,
    ) -> list[Any]:
        """Explain a token in words, figures and tables."""
        settings = chosen_settings(copies, carriers, benign, placement, attribution)
        context = self._startup.context()
        token = named_token(context.model.vocabulary, name)
        return _parts(explain_on(context.model, token, context.run, settings, progress))

    def example(self, progress: ProgressCallback) -> list[Any]:
        """Return the worked example; computed once, when the tab is first opened."""
        counts = (_COPIES, _CARRIERS, _BENIGN)
        return self._example.get(
            lambda: self.explained(self.example_name, Placement.SUFFIX.value, *counts, False, progress)
        )


def explain_tab(startup: Startup, page: gr.Blocks, own_tab: gr.Tab) -> None:
    """Lay out the tab; its first opening computes the worked example."""
    tab = Explain(startup)
    inputs = _inputs()
    button = gr.Button("Explain", variant="primary", interactive=False)
    said = gr.HTML("", elem_id="explain-answer", min_height=80)
    outputs = [said, *figure_slots(FIGURES), gr.HTML("", elem_id="explain-tables")]

    def respond(
        name: object,
        placement: object,
        copies: object,
        carriers: object,
        benign: object,
        attribution: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        reported = progress_callback(progress)
        return tab.explained(name, placement, copies, carriers, benign, attribution, reported)

    def opened(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - how gradio asks for it
        return tab.example(progress_callback(progress))

    def started() -> list[Any]:
        return [gr.update(value=tab.example_name, interactive=True), gr.update(interactive=True), gr.skip()]

    def blank(error: str) -> list[Any]:
        return [error, *slot_contents([None] * FIGURES), ""]

    starting = show_errors(started, lambda error: [gr.skip(), gr.skip(), error])
    page.load(starting, None, [inputs[0], button, said], **ON_STARTUP)
    full = ON_MODEL | {"show_progress": "full", "show_progress_on": [said]}
    gr.on([button.click, inputs[0].submit], show_errors(respond, blank), inputs, outputs, **full)
    on_first_opening(own_tab, show_errors(opened, blank), [], outputs, **full)


def _inputs() -> list[Any]:
    """Make the inputs in the order of `Explain.explained`; the token is disabled at first."""
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, min_width=180, interactive=False)
        placement = placement_field(interactive=True)
        copies = count_field("Copies", 1, COPIES, value=_COPIES)
    with gr.Row():
        carriers = count_field("Texts", 2, EXPLAIN_CARRIERS, value=_CARRIERS)
        benign = count_field("Benign tokens", LEAST_BENIGN, EXPLAIN_BENIGN, value=_BENIGN)
    attribution = gr.Checkbox(
        value=False, label="Attribution", info="how much each token contributes to the similarity; slow"
    )
    return [token, placement, copies, carriers, benign, attribution]


def progress_callback(progress: gr.Progress) -> ProgressCallback:
    """Show the progress of a computation in the page."""

    def show(step: Progress) -> None:
        progress((step.done, max(1, step.total)), desc=step.stage)

    return show


def first_sentence(text: str, start: int) -> tuple[str, str]:
    """Split a text behind its first full stop; those before `start` belong to the name of a token."""
    first, stop, rest = text[start:].partition(". ")
    return f"{text[:start]}{first}{stop.strip()}", rest


def _parts(found: Explanation) -> list[Any]:
    """Return the values of the tab's outputs."""
    token = found.tokens[0]
    answer, rest = first_sentence(token.verdict, len(f"{token.token!r}"))
    said = render(
        "explanation.html.j2",
        verdict=answer,
        more=rest,
        run_verdict=token.run_verdict,
        settings=found.settings,
        carriers=found.carriers,
        source=found.source,
        pooling=found.pooling or "unknown",
        benign=found.benign["benign"].to_list(),
        notes=found.notes,
    )
    details = tables(
        ("Measures outside the benign interval", findings_table(found)),
        ("Similarity as a sum over tokens", pairs_table(found)),
        ("Nearest embeddings", neighbours_table(found)),
    )
    return [said, *slot_contents(figures_of(found)), details]
