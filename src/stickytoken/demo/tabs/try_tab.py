"""Try: what copies of a token do to two sentences."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo._answers import listed_tokens, other_sentences, worked_example
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
    tables,
    text_fields,
)
from stickytoken.demo._trial import (
    Answer,
    Question,
    describe_answer,
    measure_trial,
    pair_heatmap,
    plan_trial,
    similarity_curve,
)
from stickytoken.demo.context import (
    COPIES,
    Context,
    Startup,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
    named_token,
)
from stickytoken.errors import StickyTokenError
from stickytoken.insertion import Placement
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.validation import visible

_BENIGN = 4
_WHERE = {
    Placement.PREFIX: "before sentence B",
    Placement.SUFFIX: "after sentence B",
    Placement.RANDOM: "between the words of sentence B",
}
SENTENCES = ("Sentence A, which stays as it is", "Sentence B, which gets the copies")
NAMING = "as in the vocabulary, or # and its id"
LISTED = "flagged tokens, then ordinary ones"
NOTHING_LISTED = "no run of this model is open"
LOADING = "{model} is being loaded; a worked example follows in a few seconds. Explore and Compare are ready."


class Try:
    """Contents of the tab. Requests wait until the model is loaded."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._opening = Once()

    @property
    def _context(self) -> Context:
        return self._startup.context()

    def answer(
        self, anchor: object, carrier: object, name: object, placement: object, copies: object
    ) -> Answer:
        """Put copies of a token into sentence B."""
        texts = checked_text("sentence A", anchor), checked_text("sentence B", carrier)
        place, count = checked_placement(placement), checked_count("the number of copies", copies, 1, COPIES)
        context = self._context
        model = context.model
        token = named_token(model.vocabulary, name)
        benign = model.benign(token.id, context.run, _BENIGN)
        others = other_sentences(context.content, context.corpus)
        others = tuple(text for text in others if text not in texts)
        question = Question(*texts, token, place, count, benign, others)
        with model.encoder() as encoder:
            return measure_trial(encoder, plan_trial(encoder, question))

    def shown(self, answer: Answer, why: str = "") -> tuple[str, ReportFigure, ReportFigure]:
        """Return the answer in words, the curve and the heat-map."""
        context, question = self._context, answer.trial.question
        token = context.shown_name(question.token.id)
        benign = [context.shown_name(each.id) for each in question.benign]
        u = None if context.run is None else context.run.plan.mean_similarity
        said = render(
            "answer.html.j2",
            said=describe_answer(answer, token),
            name=token,
            token_id=question.token.id,
            verdict=context.verdict_of(question.token.id),
            copies=question.copies,
            where=_WHERE[question.placement],
            benign=benign,
            u=u,
            why=why,
        )
        return said, similarity_curve(answer, token, benign, u), pair_heatmap(answer, token, benign[0])

    def answered(self, answer: Answer, why: str = "") -> list[Any]:
        """Return the values of the tab's outputs."""
        said, *figures = self.shown(answer, why)
        return [said, *slot_contents(figures), _sentences(answer)]

    def opening(self) -> list[Any]:
        """Return the first values of all inputs and outputs; computed once for all visitors."""
        return self._opening.get(self._opened)

    def _opened(self) -> list[Any]:
        context = self._context
        example = worked_example(context.content, context.model.vocabulary, context.corpus)
        name = context.name_of(example.token_id)
        asked = (example.anchor, example.carrier, name, Placement.SUFFIX.value, example.copies)
        try:
            answered = self.answered(self.answer(*asked), example.why)
        except StickyTokenError as error:
            answered = _blank(message(str(error)))
        listed = [
            (f"{context.shown_name(token_id)}: {verdict}", token_id)
            for token_id, verdict in listed_tokens(context.content)
        ]
        return [
            *(gr.update(value=value, interactive=True) for value in asked),
            gr.update(choices=listed, info=LISTED if listed else NOTHING_LISTED, interactive=bool(listed)),
            gr.update(interactive=True),
            *answered,
        ]


def try_tab(startup: Startup, page: gr.Blocks) -> None:
    """Lay out the tab; the worked example appears as soon as the model is loaded."""
    tab = Try(startup)
    inputs, chosen = _inputs()
    button = gr.Button("Show what happens", variant="primary", interactive=False)
    answer = gr.HTML(message(LOADING.format(model=visible(startup.model_name))), elem_id="try-answer")
    outputs = [answer, *figure_slots(2), gr.HTML("", elem_id="try-sentences")]

    def respond(*asked: object) -> list[Any]:
        return tab.answered(tab.answer(*asked))

    answered = show_errors(respond, _blank)

    def choose(anchor: object, carrier: object, token_id: object, *how: object) -> list[Any]:
        if token_id is None:
            return [gr.skip()] * (1 + len(outputs))
        name = startup.context().name_of(checked_token_id(token_id))
        return [name, *answered(anchor, carrier, name, *how)]

    anchor, carrier, token, placement, copies = inputs
    filled = [*inputs, chosen, button]
    opening = show_errors(tab.opening, lambda error: [*([gr.skip()] * len(filled)), *_blank(error)])
    page.load(opening, None, [*filled, *outputs], **ON_STARTUP)
    submitted = [token.submit, anchor.submit, carrier.submit, copies.submit]
    gr.on([button.click, *submitted, placement.input], answered, inputs, outputs, **ON_MODEL)
    choosing = show_errors(choose, lambda error: [gr.skip(), *_blank(error)])
    chosen.input(choosing, [anchor, carrier, chosen, placement, copies], [token, *outputs], **ON_MODEL)


def _blank(error: str) -> list[Any]:
    """Return outputs that are empty except for an error message."""
    return [error, *slot_contents([None, None]), ""]


def _inputs() -> tuple[list[Any], Any]:
    """Make the inputs in the order of `Try.answer`, and the list of tokens; all are disabled at first."""
    texts = text_fields(*SENTENCES)
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, elem_id="try-token", min_width=180, interactive=False)
        chosen = gr.Dropdown(
            [], value=None, label="From the run", info=LISTED, min_width=180, interactive=False
        )
        placement = placement_field()
        copies = count_field("Copies", 1, COPIES, interactive=False)
    return [*texts, token, placement, copies], chosen


def _sentences(answer: Answer) -> str:
    rows = list(zip(answer.trial.names, answer.trial.texts, strict=True))
    return tables(("Sentences of the heat-map", DataTable(("sentence", "text"), rows)))
