"""Explain why a token sticks, and why two texts are similar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import polars as pl

from stickytoken.attribution import sentences, why
from stickytoken.demo import _components as ui, context as shared
from stickytoken.demo._try import NAMING
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.files import furthest
from stickytoken.insertion import Placement
from stickytoken.inspection import AttributionMethod
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.page import shaded_rows
from stickytoken.validation import visible
from stickytoken.vocabulary import LEAST_BENIGN

# What the form begins with, and the most that it takes.
_COPIES, _CARRIERS, _BENIGN = 8, 8, 8
_MOST_CARRIERS, _MOST_BENIGN = 20, 16
# The overview of all measures, and the figures of the report.
_FIGURES = 7


def explain_tab(startup: shared.Startup, page: gr.Blocks, own_tab: gr.Tab) -> None:
    gr.HTML(ui.lead("Why is this token sticky? What the model does with its copies, beside benign tokens."))
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, min_width=180, interactive=False)
        placement = ui.placement_field(interactive=True)
        copies = ui.count_field("Copies", 1, shared.COPIES, value=_COPIES)
    with gr.Row():
        carriers = ui.count_field("Texts", 2, _MOST_CARRIERS, value=_CARRIERS)
        benign = ui.count_field("Benign tokens", LEAST_BENIGN, _MOST_BENIGN, value=_BENIGN)
    attribution = gr.Checkbox(
        value=False, label="Attribution", info="how much each token contributes to the similarity; slow"
    )
    inputs = [token, placement, copies, carriers, benign, attribution]
    button = gr.Button("Explain", variant="primary", interactive=False)
    said = gr.HTML("", elem_id="explain-answer", min_height=80)
    outputs = [said, *ui.figure_slots(_FIGURES), gr.HTML("", elem_id="explain-tables")]
    example = ui.Once()

    def example_name() -> str:
        context = startup.context()
        return context.model.name_of(shared.worked_example(context).token_id)

    def respond(
        name: object,
        placement: object,
        copies: object,
        carriers: object,
        benign: object,
        attribution: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        settings = ExplainSettings(
            copies=shared.checked_count("the number of copies", copies, 1, shared.COPIES),
            placement=shared.checked_placement(placement),
            carriers=shared.checked_count("the number of texts", carriers, 2, _MOST_CARRIERS),
            benign=shared.checked_count("the number of benign tokens", benign, LEAST_BENIGN, _MOST_BENIGN),
            attribution=attribution is True,
            attribution_carriers=2,
            attribution_benign=LEAST_BENIGN,
            directions=256,
        )
        context = startup.context()
        token_id = shared.named_token(context.model.vocabulary, name).id
        with context.model.encoder() as encoder:
            return _shown(
                explain(encoder, [token_id], run=context.run, settings=settings, progress=_step(progress))
            )

    def opened(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - how gradio asks for it
        counts = (_COPIES, _CARRIERS, _BENIGN)
        return example.get(lambda: respond(example_name(), Placement.SUFFIX.value, *counts, False, progress))

    def started() -> list[Any]:
        return [gr.update(value=example_name(), interactive=True), gr.update(interactive=True), gr.skip()]

    def blank(error: str) -> list[Any]:
        return [error, *ui.slot_contents([None] * _FIGURES), ""]

    starting = ui.show_errors(started, lambda error: [gr.skip(), gr.skip(), error])
    page.load(starting, None, [token, button, said], **ui.ON_STARTUP)
    full = ui.ON_MODEL | {"show_progress": "full", "show_progress_on": [said]}
    gr.on([button.click, token.submit], ui.show_errors(respond, blank), inputs, outputs, **full)
    ui.on_first_opening(own_tab, ui.show_errors(opened, blank), [], outputs, **full)


def _step(progress: gr.Progress) -> ProgressCallback:
    def show(step: Progress) -> None:
        progress((step.done, max(1, step.total)), desc=step.stage)

    return show


def _shown(found: Explanation) -> list[Any]:
    (token,) = found.tokens
    # The answer is the first sentence; full stops in the name of the token end none.
    start = len(f"{token.token!r}")
    first, stop, rest = token.verdict[start:].partition(". ")
    said = ui.render(
        "explanation.html.j2",
        verdict=f"{token.verdict[:start]}{first}{stop.strip()}",
        more=rest,
        run_verdict=token.run_verdict,
        settings=found.settings,
        carriers=found.carriers,
        source=found.source,
        pooling=found.pooling or "unknown",
        benign=found.benign["benign"].to_list(),
        notes=found.notes,
    )
    findings = [
        (each.called, _layer(each.layer), _layer(each.begins), each.value, each.benign_mean, each.deviations)
        for each in token.findings
    ]
    pairs = found.pairs.select(pl.exclude("token_id", "token", "pair"))
    near = found.neighbours.select("neighbour", pl.col("neighbour_id").cast(pl.String), "cosine")
    details = ui.tables(
        (
            "Measures outside the benign interval",
            DataTable(("measure", "layer", "begins", "value", "benign mean", "SD"), findings),
        ),
        (
            "Similarity as a sum over tokens",
            DataTable([name.replace("_", " ") for name in pairs.columns], pairs.rows()),
        ),
        ("Nearest embeddings", DataTable(("nearest embedding", "id", "cosine"), near.rows())),
    )
    overview = _deviations(found.measures, visible(token.token))
    figures = [overview, *explanation_figures(found.content(token.token_id))]
    drawn = [figure if figure.table.rows else None for figure in figures]
    return [said, *ui.slot_contents(drawn), details]


def _layer(layer: int | None) -> str | None:
    return None if layer is None else str(layer)


_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def _deviations(measures: pl.DataFrame, token: str) -> ReportFigure:
    every = [row | {"layer": _layer(row["layer"])} for row in furthest(measures)]
    rows = [row for row in every if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))

    def named(row: Mapping[str, Any]) -> str:
        layer = "" if row["layer"] is None else f", layer {row['layer']}"
        return f"{row['measure'].replace('_', ' ')}{layer}"

    figure = fig.new_figure(height=110 + 24 * max(1, len(rows)))
    marks = ((True, "diamond", "outside the benign interval"), (False, "circle-open", "inside"))
    for outside, symbol, name in marks:
        chosen = [row for row in rows if bool(row["outside"]) is outside]
        if chosen:
            figure.add_scatter(
                x=[round(row["deviations"], 3) for row in chosen],
                y=[named(row) for row in chosen],
                mode="markers",
                marker={"color": fig.STICKY if outside else fig.ORDINARY, "symbol": symbol, "size": 10},
                name=name,
                hovertemplate="%{y}: %{x:.1f} SD<extra></extra>",
            )
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[named(row) for row in rows])
    figure.update_layout(hovermode="closest")
    count = sum(bool(row["outside"]) for row in rows)
    said = f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
    if rows:
        said += f" The largest deviation: {named(rows[-1])}, {rows[-1]['deviations']:+.1f} SD."
    return ReportFigure(
        "deviations",
        "All measures",
        figure,
        said,
        "Each measure at the layer where it differs most. One measure just outside the interval means "
        "little; several far outside, together with rising similarities, mean a lot.",
        DataTable.of({name: name.replace("_", " ") for name in _MEASURES}, every),
        # The names of the measures leave little room.
        {"xaxis.title.text": "SD of the<br>benign tokens", "xaxis.nticks": 4, "xaxis.tickangle": 0},
    )


_PAIRS = 10
_METHODS = [
    ("deletions (Shapley values)", AttributionMethod.DELETION.value),
    ("integrated Jacobians", AttributionMethod.JACOBIANS.value),
]


def why_tab(startup: shared.Startup, page: gr.Blocks, own_tab: gr.Tab) -> None:
    gr.HTML(ui.lead("Why are these texts similar? Their similarity as a sum over pairs of their tokens."))
    texts = ui.text_fields("First text", "Second text")
    method = gr.Radio(_METHODS, value=_METHODS[0][1], label="Method")
    words = gr.Checkbox(value=False, label="Whole words in place of tokens")
    button = gr.Button("Show why", variant="primary", interactive=False)
    said = gr.HTML(
        ui.message("An example follows when the model is loaded."), elem_id="why-answer", min_height=80
    )
    example = ui.Once()

    def example_texts() -> tuple[str, str]:
        context = startup.context()
        chosen = shared.worked_example(context)
        with context.model.encoder() as encoder:
            token = encoder.tokenizer.decode_many([(chosen.token_id,)])[0].strip()
        return " ".join([chosen.carrier, *[token] * chosen.copies]), chosen.anchor

    def respond(
        first: object,
        second: object,
        method: object,
        words: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        asked = shared.checked_text("the first text", first), shared.checked_text("the second text", second)
        if not isinstance(method, str) or method not in set(AttributionMethod):
            raise InputError(f"the method is unknown: choose one of {', '.join(AttributionMethod)}")
        context = startup.context()
        with context.model.encoder() as encoder:
            found = why(
                encoder, *asked, method=method, run=context.run, words=words is True, progress=_step(progress)
            )
        if found.run is not None and Path(found.run).is_relative_to(shared.EXAMPLES):
            found = replace(found, run="RUN")  # not where the package is installed, which helps nobody
        answer, *more = reversed(sentences(found, _PAIRS))
        found = found.grouped()
        pairs, rows = found.strongest(_PAIRS), shaded_rows(found)
        return [ui.render("why.html.j2", said=answer, more=more[::-1], found=found, pairs=pairs, rows=rows)]

    def opened(progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - how gradio asks for it
        method = AttributionMethod.DELETION.value
        return example.get(lambda: respond(*example_texts(), method, False, progress))

    def started() -> list[Any]:
        values = [gr.update(value=text, interactive=True) for text in example_texts()]
        return [*values, gr.update(interactive=True), gr.skip()]

    starting = ui.show_errors(started, lambda error: [*[gr.skip()] * 3, error])
    page.load(starting, None, [*texts, button, said], **ui.ON_STARTUP)
    full = ui.ON_MODEL | {"show_progress": "full", "show_progress_on": [said]}
    answered = ui.show_errors(respond, lambda error: [error])
    inputs = [*texts, method, words]
    gr.on([button.click, *(text.submit for text in texts)], answered, inputs, [said], **full)
    ui.on_first_opening(own_tab, ui.show_errors(opened, lambda error: [error]), [], [said], **full)
