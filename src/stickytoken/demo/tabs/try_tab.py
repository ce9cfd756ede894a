"""Try: two sentences, a token, and what copies of it do."""

from __future__ import annotations

from typing import Any

import gradio as gr

from stickytoken.demo.context import Context
from stickytoken.demo.figures import describe_answer, pair_heatmap, similarity_curve
from stickytoken.demo.limits import COPIES, checked_count, checked_text
from stickytoken.demo.material import Example, listed_tokens, other_sentences, worked_example
from stickytoken.demo.naming import named_token
from stickytoken.demo.shown import FigureSlot, one_line_errors, rendered, shown_in_slot, tables
from stickytoken.demo.tabs.events import ON_MODEL
from stickytoken.demo.trial import Answer, Question, measure_trial, plan_trial
from stickytoken.insertion import Placement
from stickytoken.reports.figures.figure import DataTable, ReportFigure

_BENIGN = 4
_WHERE = {
    Placement.PREFIX: "in front of sentence B",
    Placement.SUFFIX: "behind sentence B",
    Placement.RANDOM: "between the words of sentence B",
}
NAMING = "as in the vocabulary, or # and its id"
PLACES = [("in front", "prefix"), ("behind", "suffix"), ("between the words", "random")]


class Try:
    """What the tab shows.

    Args:
        context: of the app.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._others = other_sentences(context.content, context.corpus)
        self.example: Example = worked_example(context.content, context.bench.vocabulary, context.corpus)

    def answer(self, anchor: str, carrier: str, name: str, placement: str, copies: float) -> Answer:
        """Put copies of a token into sentence B.

        Raises:
            InputError: something that cannot be tried; says what.
            EncodingError: a text without a usable vector.
        """
        anchor = checked_text("sentence A", anchor)
        carrier = checked_text("sentence B", carrier)
        count = checked_count("copies", copies, 1, COPIES)
        bench = self._context.bench
        token = named_token(bench.vocabulary, name)
        benign = bench.benign(token.id, self._context.run, _BENIGN)
        others = tuple(text for text in self._others if text not in (anchor, carrier))
        question = Question(anchor, carrier, token, Placement(placement), count, benign, others)
        with bench.encoder() as encoder:
            return measure_trial(encoder, plan_trial(encoder, question))

    def shown(self, answer: Answer, why: str = "") -> tuple[str, ReportFigure, ReportFigure]:
        """The answer in words, the curve, and the heat-map."""
        context, question = self._context, answer.trial.question
        token = context.shown_name(question.token.id)
        benign = [context.shown_name(each.id) for each in question.benign]
        u = None if context.run is None else context.run.plan.mean_similarity
        said = rendered(
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


def try_tab(context: Context) -> None:
    """Lay the tab out, with the worked example in it."""
    tab = Try(context)
    example = tab.example
    name = context.name_of(example.token_id)
    first = tab.answer(example.anchor, example.carrier, name, Placement.SUFFIX.value, example.copies)
    said, curve, heatmap = tab.shown(first, example.why)
    inputs, chosen = _inputs(context, example, name)
    button = gr.Button("Show what happens", variant="primary")
    answer = gr.HTML(said, elem_id="try-answer")
    slots = (FigureSlot(curve), FigureSlot(heatmap))
    texts = gr.HTML(_sentences(first), elem_id="try-sentences")

    @one_line_errors
    def respond(*asked: Any) -> list[Any]:
        found = tab.answer(*asked)
        line, *figures = tab.shown(found)
        return [line, *(part for figure in figures for part in shown_in_slot(figure)), _sentences(found)]

    def named(token_id: int | None) -> Any:
        return gr.skip() if token_id is None else context.name_of(token_id)

    anchor, carrier, token, placement, copies = inputs
    outputs = [answer, *(part for slot in slots for part in slot.outputs), texts]
    picked = chosen.input(named, chosen, token, queue=False, show_progress="hidden", api_visibility="private")
    submitted = [token.submit, anchor.submit, carrier.submit]
    gr.on([button.click, *submitted, placement.input, copies.release], respond, inputs, outputs, **ON_MODEL)
    picked.then(respond, inputs, outputs, **ON_MODEL)


def _inputs(context: Context, example: Example, name: str) -> tuple[list[Any], Any]:
    """What a visitor sets, in the order of `Try.answer`; and the list of the run's tokens."""
    with gr.Row():
        anchor = gr.Textbox(
            example.anchor, lines=2, max_lines=6, label="Sentence A, which stays as it is", min_width=280
        )
        carrier = gr.Textbox(
            example.carrier, lines=2, max_lines=6, label="Sentence B, which gets the copies", min_width=280
        )
    with gr.Row():
        token = gr.Textbox(name, label="Token", info=NAMING, elem_id="try-token", min_width=180)
        listed = [
            (f"{context.shown_name(token_id)}: {verdict}", token_id)
            for token_id, verdict in listed_tokens(context.content)
        ]
        chosen = gr.Dropdown(
            listed,
            value=None,
            label="From the run's list",
            info="its flagged tokens, then ordinary ones" if listed else "no run of this model is open",
            interactive=bool(listed),
            min_width=180,
        )
        placement = gr.Radio(PLACES, value=Placement.SUFFIX.value, label="Where the copies go", min_width=220)
        copies = gr.Slider(1, COPIES, value=example.copies, step=1, label="Copies", min_width=180)
    return [anchor, carrier, token, placement, copies], chosen


def _sentences(answer: Answer) -> str:
    rows = list(zip(answer.trial.names, answer.trial.texts, strict=True))
    return tables(("Sentences of the heat-map", DataTable(("sentence", "text"), rows)))
