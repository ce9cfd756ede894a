"""Why: which pairs of tokens make two texts similar."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.attribution.result import AttributionMethod, sentences
from stickytoken.attribution.why import why
from stickytoken.demo._answers import worked_example
from stickytoken.demo._components import (
    ON_MODEL,
    ON_STARTUP,
    Once,
    message,
    on_first_opening,
    render,
    show_errors,
    text_fields,
)
from stickytoken.demo.context import Startup, checked_text
from stickytoken.demo.tabs.explain_tab import progress_callback
from stickytoken.errors import InputError
from stickytoken.measurement.stage import ProgressCallback
from stickytoken.reports.page import shaded_rows

_PAIRS = 10
METHODS = [
    ("deletions (Shapley values)", AttributionMethod.DELETION.value),
    ("integrated Jacobians", AttributionMethod.JACOBIANS.value),
]


class WhySimilar:
    """Contents of the tab. Requests wait until the model is loaded."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._example = Once()

    def example_texts(self) -> tuple[str, str]:
        """Return a typical pair of the run, with copies of its worst token behind the first text."""
        context = self._startup.context()
        example = worked_example(context.content, context.model.vocabulary, context.corpus)
        with context.model.encoder() as encoder:
            token = encoder.tokenizer.decode_many([(example.token_id,)])[0].strip()
        return " ".join([example.carrier, *[token] * example.copies]), example.anchor

    def answered(
        self, first: object, second: object, method: object, words: object, progress: ProgressCallback
    ) -> list[Any]:
        """Attribute the similarity of two texts."""
        texts = checked_text("the first text", first), checked_text("the second text", second)
        if not isinstance(method, str) or method not in set(AttributionMethod):
            raise InputError(f"the method is unknown: choose one of {', '.join(AttributionMethod)}")
        context = self._startup.context()
        with context.model.encoder() as encoder:
            found = why(
                encoder, *texts, method=method, run=context.run, words=words is True, progress=progress
            )
        said, *more = reversed(sentences(found, _PAIRS))
        pairs, rows = found.strongest(_PAIRS), shaded_rows(found)
        return [render("why.html.j2", said=said, more=more[::-1], found=found, pairs=pairs, rows=rows)]

    def opened(self, progress: ProgressCallback) -> list[Any]:
        """Return the answer for the example; computed once, when the tab is first opened."""
        method = AttributionMethod.DELETION.value
        return self._example.get(lambda: self.answered(*self.example_texts(), method, False, progress))


def why_tab(startup: Startup, page: gr.Blocks, own_tab: gr.Tab) -> None:
    """Lay out the tab; its first opening computes the example."""
    tab = WhySimilar(startup)
    texts = text_fields("First text", "Second text")
    method = gr.Radio(METHODS, value=METHODS[0][1], label="Method")
    words = gr.Checkbox(value=False, label="Whole words in place of tokens")
    button = gr.Button("Show why", variant="primary", interactive=False)
    said = gr.HTML(
        message("An example follows when the model is loaded."), elem_id="why-answer", min_height=80
    )

    def respond(
        first: object,
        second: object,
        method: object,
        words: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        return tab.answered(first, second, method, words, progress_callback(progress))

    def opened(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - how gradio asks for it
        return tab.opened(progress_callback(progress))

    def started() -> list[Any]:
        values = [gr.update(value=text, interactive=True) for text in tab.example_texts()]
        return [*values, gr.update(interactive=True), gr.skip()]

    starting = show_errors(started, lambda error: [*[gr.skip()] * 3, error])
    page.load(starting, None, [*texts, button, said], **ON_STARTUP)
    full = ON_MODEL | {"show_progress": "full", "show_progress_on": [said]}
    answered = show_errors(respond, lambda error: [error])
    inputs = [*texts, method, words]
    gr.on([button.click, *(text.submit for text in texts)], answered, inputs, [said], **full)
    on_first_opening(own_tab, show_errors(opened, lambda error: [error]), [], [said], **full)
