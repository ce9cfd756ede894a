"""Compare two runs side by side, and a model with its repaired copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from stickytoken.comparisons import compare
from stickytoken.demo import _components as ui
from stickytoken.demo._try import LOADING, SENTENCES
from stickytoken.demo.context import (
    COPIES,
    RunLibrary,
    Startup,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
    worked_example,
)
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining, Placement, Token, place_as_text
from stickytoken.methods.probes import KeyedPaths
from stickytoken.repairs import Repair
from stickytoken.repairs.result import RepairedTokenRecord
from stickytoken.reports.comparison import comparison_figures, comparison_parts
from stickytoken.reports.figures.effects import repair_curves
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import visible

_TWO_RUNS_NEEDED = (
    "A comparison needs two runs, and there is {count}. Make another with `stickytoken detect MODEL`, then "
    "start the app with both: `stickytoken demo --run RUN --run RUN`."
)
# The most figures that `comparison_figures` returns.
_FIGURES = 2


def compare_tab(library: RunLibrary, own_tab: gr.Tab) -> None:
    labels = library.labels
    if len(labels) < 2:
        needed = _TWO_RUNS_NEEDED.format(count="one" if labels else "none")
        gr.HTML(ui.message(needed), elem_id="compare-answer")
        return
    with gr.Row():
        first = gr.Dropdown(labels, value=labels[0], label="Run", interactive=True, min_width=280)
        second = gr.Dropdown(labels, value=labels[1], label="Compared with", interactive=True, min_width=280)
    outputs = [gr.HTML("", elem_id="compare-answer"), *ui.figure_slots(_FIGURES)]

    def respond(one: object, other: object) -> list[Any]:
        if one == other:
            raise InputError("both runs are the same: choose two different ones")
        contents = [library.content(label) for label in (one, other)]
        found = compare([content.run or content.path for content in contents])
        figures = comparison_figures(found)
        said = ui.render("comparison.html.j2", **comparison_parts(found))
        return [said, *ui.slot_contents([*figures, *[None] * (_FIGURES - len(figures))])]

    answered = ui.show_errors(respond, lambda error: [error, *ui.slot_contents([None] * _FIGURES)])
    gr.on([first.input, second.input], answered, [first, second], outputs, **ui.ON_TABLES)
    ui.on_first_opening(own_tab, answered, [first, second], outputs, **ui.ON_TABLES)


NO_REPAIR = (
    "No repaired model is open. Make one with `stickytoken repair RUN --out FOLDER`, then start the app with "
    "it: `stickytoken demo --run RUN --repair FOLDER`."
)
_ORDINARY = 4
_COPIES = 8


def repair_tab(startup: Startup, page: gr.Blocks) -> None:
    if startup.repair is None:
        gr.HTML(ui.message(NO_REPAIR), elem_id="repair-answer")
        return
    view = RepairView(startup, startup.repair)
    texts = ui.text_fields(*SENTENCES)
    with gr.Row():
        token = gr.Dropdown(
            view.choices, value=None, label="Repaired token", min_width=180, interactive=False
        )
        placement = ui.placement_field()
        copies = ui.count_field("Copies", 1, COPIES, interactive=False)
    button = gr.Button("Compare before and after", variant="primary", interactive=False)
    answer = gr.HTML(ui.message(LOADING.format(model=visible(startup.model_name))), elem_id="repair-answer")
    inputs, outputs = [*texts, token, placement, copies], [answer, *ui.figure_slots(1)]
    answered = ui.show_errors(view.answered, _blank)
    opening = ui.show_errors(view.opening, lambda error: [*([gr.skip()] * (len(inputs) + 1)), *_blank(error)])
    page.load(opening, None, [*inputs, button, *outputs], **ui.ON_STARTUP)
    submitted = [*(text.submit for text in texts), copies.submit]
    gr.on([button.click, *submitted, token.input, placement.input], answered, inputs, outputs, **ui.ON_MODEL)


def _blank(error: str) -> list[Any]:
    return [error, *ui.slot_contents([None])]


class RepairView:
    """Contents of the tab. Requests wait until the models are loaded."""

    def __init__(self, startup: Startup, repair: Repair) -> None:
        self._startup = startup
        self._repair = repair
        self._opening = ui.Once()
        self._tokens = {token.token_id: token for token in repair.record.tokens}

    @property
    def choices(self) -> list[tuple[str, int]]:
        return [
            (f"{visible(token.token)} ({token.strategy})", token.token_id) for token in self._tokens.values()
        ]

    def answer(
        self, anchor: object, carrier: object, token_id: object, placement: object, copies: object
    ) -> RepairAnswer:
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
        with context.model.encoder() as original, context.repaired.encoder() as repaired:
            return _measured((original, repaired), *texts, token.text, place, count, benign)

    def _token(self, token_id: object) -> RepairedTokenRecord:
        found = self._tokens.get(checked_token_id(token_id))
        if found is None:
            raise InputError("the repair has no token with that id: choose one from the list")
        return found

    def answered(self, *asked: object) -> list[Any]:
        found = self.answer(*asked)
        token = self._token(asked[2])
        said = ui.render(
            "repair.html.j2",
            answer=found,
            name=visible(token.token),
            token=token,
            state=self._repair.record.state,
            checks=[] if (seen := self._repair.record.verification) is None else seen.checks,
            repair=self._repair.path.name,
        )
        figure = repair_curves(
            "repair-try",
            "Similarity of the two sentences",
            "The similarity of the two sentences as copies of the token are written into sentence B, in the "
            "model before the repair and in the repaired one, and as copies of ordinary tokens of the same "
            "kind and length are. After a repair, copies should move the sentence about as ordinary tokens "
            "do.",
            found.counts,
            found.lines,
            "Similarity of the two sentences",
            "cosine similarity",
        )
        return [said, *ui.slot_contents([figure])]

    def opening(self) -> list[Any]:
        return self._opening.get(self._opened)

    def _opened(self) -> list[Any]:
        example = worked_example(self._startup.context())
        first = next(iter(self._tokens))
        asked = (example.anchor, example.carrier, first, Placement.SUFFIX.value, _COPIES)
        answered = ui.show_errors(self.answered, _blank)(*asked)
        return [
            *(gr.update(value=value, interactive=True) for value in asked),
            gr.update(interactive=True),
            *answered,
        ]


_COUNTS = (0, 1, 2, 4, 8, 16, 32)
_SEED = 42
_KEY = 1


@dataclass(frozen=True)
class RepairAnswer:
    """Cosine similarities of the two sentences by number of copies."""

    copies: int  # that were asked for
    counts: list[int]  # numbers of copies, 0 first
    # Similarities before and after the repair, and of ordinary tokens before it, by name
    lines: dict[str, list[float]]
    same: bool  # whether both models give sentence B without copies the same vector
    read: tuple[str, ...]  # sentence B with the copies, as the repaired model's tokenizer reads it

    def at(self, name: str) -> float:
        """Return the similarity with the copies that were asked for."""
        return self.lines[name][self.counts.index(self.copies)]

    def change(self, name: str) -> float:
        return self.at(name) - self.lines[name][0]


def _measured(
    models: tuple[IdReader, IdReader],
    anchor: str,
    carrier: str,
    text: str,
    placement: Placement,
    copies: int,
    ordinary: Sequence[Token],
) -> RepairAnswer:
    original, repaired = models
    counts = sorted({copies, *_COUNTS})
    path: tuple[int, ...] = ()
    if placement is Placement.RANDOM:
        paths = KeyedPaths(_SEED, _KEY, (len(carrier.split()),), counts[-1], Insertion.IDS)
        path = paths.of(Token(0, ""))[0]

    def written(what: str, count: int) -> str:
        return place_as_text([what.strip()] * count, carrier, placement, path, Joining.WORDS)

    def similarities(model: IdReader, what: str) -> list[float]:
        units = exact_unit_vectors(model.encode([anchor, *(written(what, n) for n in counts)]))
        return [float(value) for value in units[1:] @ units[0]]

    texts = [written(text, n) for n in counts]
    read = zip(counts, *(model.content_ids(texts) for model in models), strict=True)
    counts = [n for n, *ids in read if all(model.fits(own) for model, own in zip(models, ids, strict=True))]
    if copies not in counts:
        raise InputError(
            f"sentence B with {copies} copies is longer than {original.name} reads "
            f"({original.max_length} tokens): shorten it or use fewer copies"
        )
    usual = [similarities(original, token.text) for token in ordinary]
    lines = {
        "before the repair": similarities(original, text),
        "after the repair": similarities(repaired, text),
        "ordinary tokens": [float(np.mean(values)) for values in zip(*usual, strict=True)],
    }
    first, second = (model.encode([carrier]) for model in models)
    (ids,) = repaired.content_ids([written(text, copies)])
    return RepairAnswer(
        copies,
        counts,
        {name: values for name, values in lines.items() if values},
        bool(np.array_equal(first, second)),
        tuple(repaired.tokenizer.entries[k] for k in ids),
    )
