"""Compare two runs side by side, and a model with its repaired copy."""

from __future__ import annotations

from collections.abc import Sequence
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


def compare_tab(library: shared.RunLibrary, own_tab: gr.Tab) -> None:
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


_NO_REPAIR = (
    "No repaired model is open. Make one with `stickytoken repair RUN --out YOUR_FOLDER`, then start the app "
    "with it: `stickytoken demo --run RUN --repair YOUR_FOLDER`."
)
_ORDINARY = 4
_COPIES = 8


def repair_tab(startup: shared.Startup, page: gr.Blocks) -> None:
    if startup.repair is None:
        gr.HTML(ui.message(_NO_REPAIR), elem_id="repair-answer")
        return
    repair, tokens = startup.repair, {token.token_id: token for token in startup.repair.record.tokens}
    texts = ui.text_fields(*SENTENCES)
    with gr.Row():
        choices = [(f"{visible(token.token)} ({token.strategy})", key) for key, token in tokens.items()]
        token = gr.Dropdown(choices, value=None, label="Repaired token", min_width=180, interactive=False)
        placement = ui.placement_field()
        number = ui.count_field("Copies", 1, shared.COPIES, interactive=False)
    button = gr.Button("Compare before and after", variant="primary", interactive=False)
    answer = gr.HTML(ui.message(LOADING.format(model=visible(startup.model_name))), elem_id="repair-answer")
    inputs, outputs = [*texts, token, placement, number], [answer, *ui.figure_slots(1)]
    example = ui.Once()

    def respond(anchor: object, carrier: object, token_id: object, where: object, count: object) -> list[Any]:
        sentences = shared.checked_text("sentence A", anchor), shared.checked_text("sentence B", carrier)
        chosen = tokens.get(shared.checked_token_id(token_id))
        if chosen is None:
            raise InputError("the repair has no token with that id: choose one from the list")
        place = shared.checked_placement(where)
        copies = shared.checked_count("the number of copies", count, 1, shared.COPIES)
        context = startup.context()
        if context.repaired is None:
            raise InputError(
                f"the repair in {repair.path.name} is of a different model than {context.model.name}: "
                "start the app with the model of that repair"
            )
        benign = context.model.benign(chosen.token_id, context.run, _ORDINARY)
        with context.model.encoder() as original, context.repaired.encoder() as repaired:
            models = (original, repaired)
            counts, lines, read = _similarities(models, *sentences, chosen.text, place, copies, benign)
            plain, other = (model.encode([sentences[1]]) for model in models)
        verification = repair.record.verification
        said = ui.render(
            "repair.html.j2",
            copies=copies,
            unchanged=lines["before the repair"][0],
            changes={name: line[counts.index(copies)] - line[0] for name, line in lines.items()},
            same=np.array_equal(plain, other),
            read=read,
            name=visible(chosen.token),
            token=chosen,
            state=repair.record.state,
            checks=[] if verification is None else verification.checks,
            repair=repair.path.name,
        )
        figure = repair_curves(
            "repair-try",
            "Similarity of the two sentences",
            "The similarity of the two sentences as copies of the token are written into sentence B, in the "
            "model before the repair and in the repaired one, and as copies of ordinary tokens of the same "
            "kind and length are. After a repair, copies should move the sentence about as ordinary tokens "
            "do.",
            counts,
            lines,
            "Similarity of the two sentences",
            "cosine similarity",
        )
        return [said, *ui.slot_contents([figure])]

    def first() -> list[Any]:
        chosen = shared.worked_example(startup.context())
        asked = (chosen.anchor, chosen.carrier, next(iter(tokens)), Placement.SUFFIX.value, _COPIES)
        shown = [gr.update(value=value, interactive=True) for value in asked]
        return [*shown, gr.update(interactive=True), *answered(*asked)]

    def blank(error: str) -> list[Any]:
        return [error, *ui.slot_contents([None])]

    answered = ui.show_errors(respond, blank)
    opening = ui.show_errors(
        lambda: example.get(first), lambda error: [*([gr.skip()] * (len(inputs) + 1)), *blank(error)]
    )
    page.load(opening, None, [*inputs, button, *outputs], **ui.ON_STARTUP)
    submitted = [*(text.submit for text in texts), number.submit]
    gr.on([button.click, *submitted, token.input, placement.input], answered, inputs, outputs, **ui.ON_MODEL)


_SEED = 42
_KEY = 1


def _similarities(
    models: tuple[IdReader, IdReader],
    anchor: str,
    carrier: str,
    text: str,
    placement: Placement,
    copies: int,
    ordinary: Sequence[Token],
) -> tuple[list[int], dict[str, list[float]], list[str]]:
    tried = sorted({copies, *(0, 1, 2, 4, 8, 16, 32)})
    path: tuple[int, ...] = ()
    if placement is Placement.RANDOM:
        paths = KeyedPaths(_SEED, _KEY, (len(carrier.split()),), tried[-1], Insertion.IDS)
        (path,) = paths.of(Token(0, ""))

    def written(what: str, counts: Sequence[int]) -> list[str]:
        return [place_as_text([what.strip()] * n, carrier, placement, path, Joining.WORDS) for n in counts]

    def similarities(model: IdReader, what: str) -> list[float]:
        units = exact_unit_vectors(model.encode([anchor, *written(what, counts)]))
        return [float(value) for value in units[1:] @ units[0]]

    original, repaired = models
    before, after = (model.content_ids(written(text, tried)) for model in models)
    counts = [
        n
        for n, old, new in zip(tried, before, after, strict=True)
        if original.fits(old) and repaired.fits(new)
    ]
    if copies not in counts:
        raise InputError(
            f"sentence B with {copies} copies is longer than {original.name} reads "
            f"({original.max_length} tokens): shorten it or use fewer copies"
        )
    lines = {
        "before the repair": similarities(original, text),
        "after the repair": similarities(repaired, text),
    }
    if ordinary:
        usual = [similarities(original, token.text) for token in ordinary]
        lines["ordinary tokens"] = [float(np.mean(values)) for values in zip(*usual, strict=True)]
    read = after[tried.index(copies)]
    return counts, lines, [repaired.tokenizer.entries[token_id] for token_id in read]
