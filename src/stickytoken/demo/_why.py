"""The tab that attributes the similarity of two texts to their tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from stickytoken.attribution import summary, why
from stickytoken.demo import _components as ui, context as shared
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.reports.page import shade_rows

# Maximum number of token pairs that are listed.
_PAIRS = 10


def why_tab(startup: shared.Startup, page: gr.Blocks, tab: gr.Tab) -> None:
    """Add the components and events of the tab that attributes two texts' similarity to their tokens.

    When the model has been loaded, the form is unlocked and filled in with the texts of the example. When a
    visitor first opens the tab, it shows the answer for the example, which is computed once for all visitors.
    """
    gr.HTML(ui.lead("Why are these texts similar? Their similarity as a sum over pairs of their tokens."))
    text_fields = ui.text_fields("First text", "Second text")
    words_field = gr.Checkbox(value=False, label="Whole words in place of tokens")
    button = gr.Button("Show why", variant="primary", interactive=False)
    answer = gr.HTML(
        ui.message("An example follows when the model is loaded."), elem_id="why-answer", min_height=80
    )

    def make_example_texts() -> tuple[str, str]:
        context = startup.context()
        example = shared.make_worked_example(context)
        with context.model.encoder() as encoder:
            token = encoder.tokenizer.decode_many([(example.token_id,)])[0].strip()
        carrier_with_copies = " ".join([example.carrier, *[token] * example.copies])
        return carrier_with_copies, example.anchor

    def respond(
        first: object,
        second: object,
        words: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        """Attribute the similarity of two texts, and return the answer. The arguments come from the form."""
        first_text = shared.check_text("the first text", first)
        second_text = shared.check_text("the second text", second)
        context = startup.context()
        with context.model.encoder() as encoder:
            similarity = why(
                encoder,
                first_text,
                second_text,
                run=context.run,
                words=words is True,
                progress=_show_on(progress),
            )
        if similarity.run is not None and Path(similarity.run).is_relative_to(shared.EXAMPLES):
            # The path of the installed package is of no use to visitors.
            similarity = replace(similarity, run="RUN")
        *facts, cause = summary(similarity, _PAIRS)  # the last sentences say what makes the texts similar
        grouped = similarity.grouped()  # copies of a sticky token are one part
        html = ui.render(
            "why.html.j2",
            headline=cause,
            lines=facts,
            why=grouped,
            pairs=grouped.strongest(_PAIRS),
            rows=shade_rows(grouped),
        )
        return [html]

    shared_example = ui.Once()  # computed for the first visitor who opens the tab

    def answer_example(progress: gr.Progress) -> list[Any]:
        first_text, second_text = make_example_texts()
        return shared_example.get(
            lambda: respond(first=first_text, second=second_text, words=False, progress=progress)
        )

    example_or_error = ui.show_errors(answer_example, lambda error: [error])

    def open_tab(
        was_visited: bool,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        return ui.on_first_visit(was_visited, lambda: example_or_error(progress), output_count=1)

    def unlock_form() -> list[Any]:
        fields = [gr.update(value=text, interactive=True) for text in make_example_texts()]
        unlocked_button = gr.update(interactive=True)
        unchanged_answer = gr.skip()
        return [*fields, unlocked_button, unchanged_answer]

    unlock_or_error = ui.show_errors(unlock_form, lambda error: [gr.skip(), gr.skip(), gr.skip(), error])
    page.load(unlock_or_error, None, [*text_fields, button, answer], **ui.STARTUP_QUEUE)
    with_progress = ui.MODEL_QUEUE | {"show_progress": "full", "show_progress_on": [answer]}
    answer_or_error = ui.show_errors(respond, lambda error: [error])
    triggers = [button.click, *(field.submit for field in text_fields)]
    gr.on(triggers, answer_or_error, [*text_fields, words_field], [answer], **with_progress)
    visited = gr.State(False)
    tab.select(open_tab, [visited], [visited, answer], **with_progress)


def _show_on(progress: gr.Progress) -> ProgressCallback:
    def show(step: Progress) -> None:
        total = max(1, step.total)  # Gradio divides by it
        progress((step.done, total), desc=step.stage)

    return show
