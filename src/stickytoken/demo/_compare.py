"""Compare two runs side by side, and a model with its repaired copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from stickytoken.comparisons import compare
from stickytoken.demo import _components as ui, context as shared
from stickytoken.demo._try import LOADING, SENTENCES
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining, Placement, Token, place_as_text
from stickytoken.methods.probes import KeyedPaths
from stickytoken.repairs import Repair
from stickytoken.repairs.result import RepairedTokenRecord
from stickytoken.reports.comparison import comparison_figures, comparison_parts
from stickytoken.reports.figures import ReportFigure
from stickytoken.reports.figures.effects import CurveWords, repair_curves
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import visible

_TWO_RUNS_NEEDED = (
    "A comparison needs two runs, and there is {count}. Make another with `stickytoken detect MODEL`, then "
    "start the app with both: `stickytoken demo --run RUN --run RUN`."
)
# Maximum number of figures that `comparison_figures` returns.
_FIGURES = 2


def compare_tab(library: shared.RunLibrary, tab: gr.Tab) -> None:
    """Add the components and events of the tab that compares two runs.

    The comparison of the first two runs is shown when a visitor first opens the tab. If there are fewer than
    two runs, the tab only says how to make another.
    """
    labels = library.labels
    if len(labels) < 2:
        needed = _TWO_RUNS_NEEDED.format(count="one" if labels else "none")
        gr.HTML(ui.message(needed), elem_id="compare-answer")
        return
    with gr.Row():
        first = gr.Dropdown(labels, value=labels[0], label="Run", interactive=True, min_width=280)
        second = gr.Dropdown(labels, value=labels[1], label="Compared with", interactive=True, min_width=280)
    outputs = [gr.HTML("", elem_id="compare-answer"), *ui.figure_slots(_FIGURES)]

    def respond(first_label: object, second_label: object) -> list[Any]:
        """Return the values of ``outputs`` that compare the runs with these labels."""
        if first_label == second_label:
            raise InputError("both runs are the same: choose two different ones")
        contents = [library.content(label) for label in (first_label, second_label)]
        comparison = compare([content.run for content in contents])
        answer = ui.render("comparison.html.j2", **comparison_parts(comparison))
        figures: list[ReportFigure | None] = [*comparison_figures(comparison)]
        figures += [None] * (_FIGURES - len(figures))
        return [answer, *ui.slot_contents(figures)]

    def only_error(error: str) -> list[Any]:
        """Return the values of ``outputs`` that show an error message and clear the figures."""
        return [error, *ui.slot_contents([None] * _FIGURES)]

    answer_or_error = ui.show_errors(respond, only_error)

    def open_tab(was_visited: bool, first_label: object, second_label: object) -> list[Any]:
        """Return the values of ``visited`` and ``outputs``, which change only on the first visit."""
        return ui.on_first_visit(
            was_visited, len(outputs), lambda: answer_or_error(first_label, second_label)
        )

    gr.on([first.input, second.input], answer_or_error, [first, second], outputs, **ui.ON_TABLES)
    visited = gr.State(False)
    tab.select(open_tab, [visited, first, second], [visited, *outputs], **ui.ON_TABLES)


_NO_REPAIR = (
    "No repaired model is open. Make one with `stickytoken repair RUN --out YOUR_FOLDER`, then start the app "
    "with it: `stickytoken demo --run RUN --repair YOUR_FOLDER`."
)
# Number of ordinary tokens to compare a repaired token with.
_ORDINARY = 4
# Number of copies in the worked example.
_COPIES = 8


def repair_tab(startup: shared.Startup, page: gr.Blocks) -> None:
    """Add the components and events of the tab that compares a model with its repaired copy.

    When the model has been loaded, the form is unlocked and filled in with an example, and the answer for the
    example is shown. The answer is computed once for all visitors. If no repaired copy is open, the tab only
    says how to make one.
    """
    if startup.repair is None:
        gr.HTML(ui.message(_NO_REPAIR), elem_id="repair-answer")
        return
    repair = startup.repair
    token_by_id = {token.token_id: token for token in repair.record.tokens}
    texts = ui.text_fields(*SENTENCES)
    with gr.Row():
        choices = [
            (f"{visible(token.token)} ({token.strategy})", token_id)
            for token_id, token in token_by_id.items()
        ]
        token_field = gr.Dropdown(
            choices, value=None, label="Repaired token", min_width=180, interactive=False
        )
        placement = ui.placement_field()
        copies = ui.count_field("Copies", 1, shared.COPIES, interactive=False)
    button = gr.Button("Compare before and after", variant="primary", interactive=False)
    loading = ui.message(LOADING.format(model=visible(startup.model_name)))
    answer = gr.HTML(loading, elem_id="repair-answer")
    inputs = [*texts, token_field, placement, copies]
    outputs = [answer, *ui.figure_slots(1)]

    def respond(
        anchor: object, carrier: object, token_id: object, placement_value: object, count: object
    ) -> list[Any]:
        """Answer the visitor's question, whose parts are ``inputs``. Return the values of ``outputs``."""
        question = _RepairQuestion(
            anchor=shared.checked_text("sentence A", anchor),
            carrier=shared.checked_text("sentence B", carrier),
            token=_repaired_token(token_by_id, token_id),
            placement=shared.checked_placement(placement_value),
            copies=shared.checked_count("the number of copies", count, 1, shared.COPIES),
        )
        return _repair_answer(startup.context(), repair, question)

    def only_error(error: str) -> list[Any]:
        """Return the values of ``outputs`` that show an error message and clear the figure."""
        return [error, *ui.slot_contents([None])]

    answer_or_error = ui.show_errors(respond, only_error)

    def fill_form() -> list[Any]:
        """Return values that unlock and fill in ``inputs``, unlock the button and answer the example."""
        example = shared.worked_example(startup.context())
        values = (example.anchor, example.carrier, next(iter(token_by_id)), Placement.SUFFIX.value, _COPIES)
        fields = [gr.update(value=value, interactive=True) for value in values]
        return [*fields, gr.update(interactive=True), *answer_or_error(*values)]

    def leave_form(error: str) -> list[Any]:
        """Return values that leave ``inputs`` and the button unchanged and show an error message."""
        return [*([gr.skip()] * (len(inputs) + 1)), *only_error(error)]

    shared_example = ui.Once()
    example_or_error = ui.show_errors(lambda: shared_example.get(fill_form), leave_form)
    page.load(example_or_error, None, [*inputs, button, *outputs], **ui.ON_STARTUP)
    submits = [*(text.submit for text in texts), copies.submit]
    triggers = [button.click, *submits, token_field.input, placement.input]
    gr.on(triggers, answer_or_error, inputs, outputs, **ui.ON_MODEL)


def _repaired_token(token_by_id: dict[int, RepairedTokenRecord], token_id: object) -> RepairedTokenRecord:
    """Return the record of the token with the id that a visitor chose, or raise InputError."""
    token = token_by_id.get(shared.checked_token_id(token_id))
    if token is None:
        raise InputError("the repair has no token with that id: choose one from the list")
    return token


@dataclass(frozen=True)
class _RepairQuestion:
    """What a visitor asks about a repair.

    Attributes:
        anchor: Sentence A, which stays as it is.
        carrier: Sentence B, which gets the copies.
        token: The token to insert into sentence B.
        placement: Where the copies are inserted.
        copies: Number of copies to insert.
    """

    anchor: str
    carrier: str
    token: RepairedTokenRecord
    placement: Placement
    copies: int


def _repair_answer(context: shared.AppContext, repair: Repair, question: _RepairQuestion) -> list[Any]:
    """Encode the sentences with both models, and return the answer and its figure."""
    if context.repaired is None:
        raise InputError(
            f"the repair in {repair.path.name} is not a repair of {context.model.name}: "
            "start the app with the model that was repaired"
        )
    token = question.token
    ordinary = context.model.benign(token.token_id, context.run, _ORDINARY)
    with context.model.encoder() as original, context.repaired.encoder() as repaired:
        curves = _similarities(original, repaired, question, ordinary)
        vector = original.encode([question.carrier])
        repaired_vector = repaired.encode([question.carrier])
    verification = repair.record.verification
    position = curves.counts.index(question.copies)
    answer = ui.render(
        "repair.html.j2",
        copies=question.copies,
        unchanged=curves.lines["before the repair"][0],
        changes={name: line[position] - line[0] for name, line in curves.lines.items()},
        same=np.array_equal(vector, repaired_vector),
        read=curves.read_as,
        name=visible(token.token),
        token=token,
        state=repair.record.state,
        checks=[] if verification is None else verification.checks,
        repair=repair.path.name,
    )
    figure = repair_curves(_CURVE_WORDS, curves.counts, curves.lines)
    return [answer, *ui.slot_contents([figure])]


_CURVE_WORDS = CurveWords(
    name="repair-try",
    title="Similarity of the two sentences",
    reading="The similarity of the two sentences as copies of the token are written into sentence B: in the "
    "model before the repair, in the repaired model, and with copies of ordinary tokens of the same kind and "
    "length. After a repair, copies of the token should change the similarity about as much as copies of "
    "ordinary tokens do.",
    measure="Similarity of the two sentences",
    axis="cosine similarity",
)

_SEED = 42
# Together with the seed, this key gives each tab its own random places for the copies.
_KEY = 1
# Numbers of copies that the curves show, in addition to the number that the visitor asks for.
_CURVE_COUNTS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class _RepairCurves:
    """Similarities of two sentences as a function of the number of copies.

    Attributes:
        counts: Numbers of copies, in ascending order. The first number is 0.
        lines: For each curve, the similarity at each number of copies, keyed by the name of the curve:
            ``before the repair``, ``after the repair`` and, if the token is compared with ordinary tokens,
            ``ordinary tokens``.
        read_as: Vocabulary entries that the repaired model reads in sentence B, after the copies that the
            visitor asked for are inserted.
    """

    counts: list[int]
    lines: dict[str, list[float]]
    read_as: list[str]


def _similarities(
    original: IdReader, repaired: IdReader, question: _RepairQuestion, ordinary: Sequence[Token]
) -> _RepairCurves:
    """Compute the similarity of the sentences with both models, for each number of copies that both can read.

    Raises:
        InputError: Sentence B with the requested copies is too long for one of the models.
    """
    candidates = sorted({question.copies, *_CURVE_COUNTS})
    path: tuple[int, ...] = ()
    if question.placement is Placement.RANDOM:
        word_counts = (len(question.carrier.split()),)
        paths = KeyedPaths(_SEED, _KEY, word_counts, candidates[-1], Insertion.IDS)
        # Any token can be passed here, because the places are the same for all tokens.
        (path,) = paths.of(Token(0, ""))

    def with_copies(text: str, counts: Sequence[int]) -> list[str]:
        return [
            place_as_text([text.strip()] * count, question.carrier, question.placement, path, Joining.WORDS)
            for count in counts
        ]

    original_ids = original.content_ids(with_copies(question.token.text, candidates))
    repaired_ids = repaired.content_ids(with_copies(question.token.text, candidates))
    counts = [
        count
        for count, ids, ids_after in zip(candidates, original_ids, repaired_ids, strict=True)
        if original.fits(ids) and repaired.fits(ids_after)
    ]
    if question.copies not in counts:
        raise InputError(
            f"sentence B with {question.copies} copies of the token is too long for {original.name}, which "
            f"can read {original.max_length} tokens: shorten the sentence or use fewer copies"
        )

    def line(model: IdReader, text: str) -> list[float]:
        units = exact_unit_vectors(model.encode([question.anchor, *with_copies(text, counts)]))
        return [float(similarity) for similarity in units[1:] @ units[0]]

    lines = {
        "before the repair": line(original, question.token.text),
        "after the repair": line(repaired, question.token.text),
    }
    if ordinary:
        ordinary_lines = [line(original, token.text) for token in ordinary]
        lines["ordinary tokens"] = np.mean(ordinary_lines, axis=0).tolist()
    ids_with_copies = repaired_ids[candidates.index(question.copies)]
    return _RepairCurves(
        counts, lines, [repaired.tokenizer.entries[token_id] for token_id in ids_with_copies]
    )
