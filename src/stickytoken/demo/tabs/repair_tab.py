"""Repair: what copies of a token do to two sentences, before and after a repair."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo._answers import RepairAnswer, RepairQuestion, measure_repair, worked_example
from stickytoken.demo._components import (
    ON_MODEL,
    ON_STARTUP,
    Once,
    count_field,
    figure_slots,
    message,
    placement_field,
    render,
    show_errors,
    slot_contents,
    text_fields,
)
from stickytoken.demo.context import (
    COPIES,
    Startup,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
)
from stickytoken.demo.tabs.try_tab import LOADING, SENTENCES
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.repairs import Repair
from stickytoken.repairs.result import RepairedTokenRecord
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.reports.figures.impact_costs import (
    describe_repair_curves,
    repair_curves,
    repair_curves_table,
)
from stickytoken.validation import visible

NO_REPAIR = (
    "No repaired model is open. Make one with `stickytoken repair RUN --out FOLDER`, then start the app with "
    "it: `stickytoken demo --run RUN --repair FOLDER`."
)
_ORDINARY = 4
_COPIES = 8


class RepairView:
    """Contents of the tab. Requests wait until the models are loaded."""

    def __init__(self, startup: Startup, repair: Repair) -> None:
        self._startup = startup
        self._repair = repair
        self._opening = Once()
        self._tokens = {token.token_id: token for token in repair.record.tokens}

    @property
    def choices(self) -> list[tuple[str, int]]:
        """The repaired tokens, as a list shows them."""
        return [
            (f"{visible(token.token)} ({token.strategy})", token.token_id) for token in self._tokens.values()
        ]

    def answer(
        self, anchor: object, carrier: object, token_id: object, placement: object, copies: object
    ) -> RepairAnswer:
        """Put copies of a repaired token into sentence B."""
        texts = checked_text("sentence A", anchor), checked_text("sentence B", carrier)
        token = self._token(token_id)
        place, count = checked_placement(placement), checked_count("the number of copies", copies, 1, COPIES)
        context = self._startup.context()
        if context.repaired is None:
            raise InputError(
                f"the repair in {self._repair.path.name} is of a different model than {context.model.name}: "
                "start the app with the model of that repair"
            )
        benign = context.model.benign(token.token_id, context.run, _ORDINARY)
        question = RepairQuestion(*texts, token.text, place, count, benign)
        with context.model.encoder() as original, context.repaired.encoder() as repaired:
            return measure_repair(original, repaired, question)

    def _token(self, token_id: object) -> RepairedTokenRecord:
        found = self._tokens.get(checked_token_id(token_id))
        if found is None:
            raise InputError("the repair has no token with that id: choose one from the list")
        return found

    def answered(self, *asked: object) -> list[Any]:
        """Return the values of the tab's outputs."""
        found = self.answer(*asked)
        token = self._token(asked[2])
        said = render(
            "repair.html.j2",
            answer=found,
            name=visible(token.token),
            token=token,
            state=self._repair.record.state,
            checks=[] if (seen := self._repair.record.verification) is None else seen.checks,
            repair=self._repair.path.name,
        )
        return [said, *slot_contents([_figure(found)])]

    def opening(self) -> list[Any]:
        """Return the first values of all inputs and outputs; computed once for all visitors."""
        return self._opening.get(self._opened)

    def _opened(self) -> list[Any]:
        context = self._startup.context()
        example = worked_example(context.content, context.model.vocabulary, context.corpus)
        first = next(iter(self._tokens))
        asked = (example.anchor, example.carrier, first, Placement.SUFFIX.value, _COPIES)
        answered = show_errors(self.answered, _blank)(*asked)
        return [
            *(gr.update(value=value, interactive=True) for value in asked),
            gr.update(interactive=True),
            *answered,
        ]


def _figure(answer: RepairAnswer) -> ReportFigure:
    return ReportFigure(
        "repair-try",
        "Similarity of the two sentences",
        repair_curves(answer.counts, answer.lines, "cosine similarity"),
        describe_repair_curves(answer.counts, answer.lines, "Similarity of the two sentences"),
        "The similarity of the two sentences as copies of the token are written into sentence B, in the "
        "model before the repair and in the repaired one, and as copies of ordinary tokens of the same kind "
        "and length are. After a repair, copies should move the sentence about as ordinary tokens do.",
        repair_curves_table(answer.counts, answer.lines),
    )


def repair_tab(startup: Startup, page: gr.Blocks) -> None:
    """Lay out the tab."""
    if startup.repair is None:
        gr.HTML(message(NO_REPAIR), elem_id="repair-answer")
        return
    view = RepairView(startup, startup.repair)
    texts = text_fields(*SENTENCES)
    with gr.Row():
        token = gr.Dropdown(
            view.choices, value=None, label="Repaired token", min_width=180, interactive=False
        )
        placement = placement_field()
        copies = count_field("Copies", 1, COPIES, interactive=False)
    button = gr.Button("Compare before and after", variant="primary", interactive=False)
    answer = gr.HTML(message(LOADING.format(model=visible(startup.model_name))), elem_id="repair-answer")
    inputs, outputs = [*texts, token, placement, copies], [answer, *figure_slots(1)]
    answered = show_errors(view.answered, _blank)
    opening = show_errors(view.opening, lambda error: [*([gr.skip()] * (len(inputs) + 1)), *_blank(error)])
    page.load(opening, None, [*inputs, button, *outputs], **ON_STARTUP)
    submitted = [texts[0].submit, texts[1].submit, copies.submit]
    gr.on([button.click, *submitted, token.input, placement.input], answered, inputs, outputs, **ON_MODEL)


def _blank(error: str) -> list[Any]:
    """Return outputs that are empty except for an error message."""
    return [error, *slot_contents([None])]
