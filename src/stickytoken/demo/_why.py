"""The tabs that explain why a token is sticky, and why two texts are similar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import plotly.graph_objects as go
import polars as pl

from stickytoken.attribution import summary, why
from stickytoken.demo import _components as ui, context as shared
from stickytoken.demo._try import NAMING
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.statistics import furthest
from stickytoken.insertion import Placement
from stickytoken.inspection import AttributionMethod
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.page import shaded_rows
from stickytoken.settings.explain import LEAST_BENIGN
from stickytoken.validation import visible

# Initial values of the form.
_COPIES = 8
_CARRIERS = 8
_BENIGN = 8
# Upper limits of the form, chosen so that an answer takes at most a minute on two cores.
_MOST_CARRIERS = 20
_MOST_BENIGN = 16
# These two settings are lower than the defaults of `explain`, so that an answer takes less time.
_ATTRIBUTION_CARRIERS = 2
_DIRECTIONS = 256
# Number of figures: the overview of all measures, and the six figures of `explanation_figures`.
_FIGURES = 7


def explain_tab(startup: shared.Startup, page: gr.Blocks, tab: gr.Tab) -> None:
    """Add the components and events of the tab that explains a token.

    When the model has been loaded, the form is unlocked and filled in with the example. When a visitor first
    opens the tab, the explanation of the example is shown. The explanation is computed once for all visitors.
    """
    gr.HTML(
        ui.lead("Why is this token sticky? What the model does with its copies, compared with benign tokens.")
    )
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
    answer = gr.HTML("", elem_id="explain-answer", min_height=80)
    outputs = [answer, *ui.figure_slots(_FIGURES), gr.HTML("", elem_id="explain-tables")]

    def example_name() -> str:
        """Return what a visitor can type to name the token of the example."""
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
        """Explain the named token, and return values for ``outputs``. The arguments are the ``inputs``."""
        settings = ExplainSettings(
            copies=shared.checked_count("the number of copies", copies, 1, shared.COPIES),
            placement=shared.checked_placement(placement),
            carriers=shared.checked_count("the number of texts", carriers, 2, _MOST_CARRIERS),
            benign=shared.checked_count("the number of benign tokens", benign, LEAST_BENIGN, _MOST_BENIGN),
            attribution=attribution is True,
            attribution_carriers=_ATTRIBUTION_CARRIERS,
            attribution_benign=LEAST_BENIGN,
            directions=_DIRECTIONS,
        )
        context = startup.context()
        token_id = shared.named_token(context.model.vocabulary, name).id
        shown_progress = _shown_on(progress)
        with context.model.encoder() as encoder:
            explanation = explain(
                encoder, [token_id], run=context.run, settings=settings, progress=shown_progress
            )
        return _explanation_outputs(explanation)

    def only_error(error: str) -> list[Any]:
        """Return the values of ``outputs`` that show an error message and clear the figures and tables."""
        return [error, *ui.slot_contents([None] * _FIGURES), ""]

    shared_example = ui.Once()

    def explain_example(progress: gr.Progress) -> list[Any]:
        """Return the values of ``outputs`` that explain the example; only the first call computes them."""
        return shared_example.get(
            lambda: respond(
                name=example_name(),
                placement=Placement.SUFFIX.value,
                copies=_COPIES,
                carriers=_CARRIERS,
                benign=_BENIGN,
                attribution=False,
                progress=progress,
            )
        )

    example_or_error = ui.show_errors(explain_example, only_error)

    def open_tab(
        was_visited: bool,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        """Return the values of ``visited`` and ``outputs``; the first visit shows the explained example."""
        return ui.on_first_visit(was_visited, len(outputs), lambda: example_or_error(progress))

    def unlock_form() -> list[Any]:
        """Return values that unlock the token field and the button, and leave the answer unchanged.

        The token field gets the name of the example's token.
        """
        return [gr.update(value=example_name(), interactive=True), gr.update(interactive=True), gr.skip()]

    unlock_or_error = ui.show_errors(unlock_form, lambda error: [gr.skip(), gr.skip(), error])
    page.load(unlock_or_error, None, [token, button, answer], **ui.ON_STARTUP)
    with_progress = ui.ON_MODEL | {"show_progress": "full", "show_progress_on": [answer]}
    answer_or_error = ui.show_errors(respond, only_error)
    gr.on([button.click, token.submit], answer_or_error, inputs, outputs, **with_progress)
    visited = gr.State(False)
    tab.select(open_tab, [visited], [visited, *outputs], **with_progress)


def _shown_on(progress: gr.Progress) -> ProgressCallback:
    """Return a callback that shows the progress of a computation on the page."""

    def show(step: Progress) -> None:
        progress((step.done, max(1, step.total)), desc=step.stage)

    return show


def _explanation_outputs(explanation: Explanation) -> list[Any]:
    """Return the answer, the figures and the tables that explain a token."""
    (token,) = explanation.tokens
    first_sentence, further_sentences = _split_verdict(token.verdict, repr(token.token))
    answer = ui.render(
        "explanation.html.j2",
        verdict=first_sentence,
        more=further_sentences,
        run_verdict=token.run_verdict,
        settings=explanation.settings,
        carriers=explanation.carriers,
        source=explanation.source,
        pooling=explanation.pooling or "unknown",
        benign=explanation.benign["benign"].to_list(),
        notes=explanation.notes,
    )
    overview = _deviations(explanation.measures, visible(token.token))
    figures = [overview, *explanation_figures(explanation.content(token.token_id))]
    with_numbers = [figure if figure.table.rows else None for figure in figures]
    return [answer, *ui.slot_contents(with_numbers), _explanation_tables(explanation)]


def _split_verdict(verdict: str, quoted_token: str) -> tuple[str, str]:
    """Return the first sentence of a verdict, which is the answer, and the remaining sentences.

    A verdict begins with the token, and a full stop inside the token does not end a sentence.
    """
    start = len(quoted_token)
    first, stop, rest = verdict[start:].partition(". ")
    return f"{verdict[:start]}{first}{stop.strip()}", rest


def _explanation_tables(explanation: Explanation) -> str:
    """Render the tables below the figures of an explanation."""
    (token,) = explanation.tokens
    findings = [
        (
            finding.called,
            _layer_text(finding.layer),
            _layer_text(finding.begins),
            finding.value,
            finding.benign_mean,
            finding.deviations,
        )
        for finding in token.findings
    ]
    pairs = explanation.pairs.select(pl.exclude("token_id", "token", "pair"))
    pair_headings = [name.replace("_", " ") for name in pairs.columns]
    neighbours = explanation.neighbours.select("neighbour", pl.col("neighbour_id").cast(pl.String), "cosine")
    measure_headings = ("measure", "layer", "begins", "value", "benign mean", "SD")
    return ui.tables(
        ("Measures outside the benign interval", DataTable(measure_headings, findings)),
        ("Similarity as a sum over tokens", DataTable(pair_headings, pairs.rows())),
        ("Nearest embeddings", DataTable(("nearest embedding", "id", "cosine"), neighbours.rows())),
    )


def _layer_text(layer: int | None) -> str | None:
    return None if layer is None else str(layer)


_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def _deviations(measures: pl.DataFrame, token: str) -> ReportFigure:
    """Draw how far each measure deviates from the benign tokens, at the layer where it deviates most."""
    all_rows = [row | {"layer": _layer_text(row["layer"])} for row in furthest(measures)]
    rows = [row for row in all_rows if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))
    count = sum(bool(row["outside"]) for row in rows)
    alt = f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
    if rows:
        largest = rows[-1]
        alt += f" The largest deviation: {_measure_name(largest)}, {largest['deviations']:+.1f} SD."
    return ReportFigure(
        "deviations",
        "All measures",
        _draw_deviations(rows),
        alt,
        "Each measure at the layer where it differs most. One measure just outside the interval means "
        "little; several measures far outside, together with rising similarities, mean a lot.",
        DataTable.of({name: name.replace("_", " ") for name in _MEASURES}, all_rows),
        # On a narrow screen, the names of the measures leave little room for the axis.
        {"xaxis.title.text": "SD of the<br>benign tokens", "xaxis.nticks": 4, "xaxis.tickangle": 0},
    )


def _measure_name(row: Mapping[str, Any]) -> str:
    layer = "" if row["layer"] is None else f", layer {row['layer']}"
    return f"{row['measure'].replace('_', ' ')}{layer}"


def _draw_deviations(rows: list[dict[str, Any]]) -> go.Figure:
    """Draw one marker per measure: a diamond if the measure lies outside the benign interval, else a circle.

    The measures are drawn from bottom to top in the order of ``rows``, which begins with the smallest
    deviation.
    """
    figure = fig.new_figure(height=110 + 24 * max(1, len(rows)))
    for is_outside in (True, False):
        marked = [row for row in rows if bool(row["outside"]) is is_outside]
        if not marked:
            continue
        marker = {"color": fig.ORDINARY, "symbol": "circle-open", "size": 10}
        if is_outside:
            marker |= {"color": fig.STICKY, "symbol": "diamond"}
        figure.add_scatter(
            x=[round(row["deviations"], 3) for row in marked],
            y=[_measure_name(row) for row in marked],
            mode="markers",
            marker=marker,
            name="outside the benign interval" if is_outside else "inside",
            hovertemplate="%{y}: %{x:.1f} SD<extra></extra>",
        )
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[_measure_name(row) for row in rows])
    figure.update_layout(hovermode="closest")
    return figure


# Maximum number of token pairs that are listed.
_PAIRS = 10
_METHODS = [
    ("deletions (Shapley values)", AttributionMethod.DELETION.value),
    ("integrated Jacobians", AttributionMethod.JACOBIANS.value),
]


def why_tab(startup: shared.Startup, page: gr.Blocks, tab: gr.Tab) -> None:
    """Add the components and events of the tab that attributes two texts' similarity to their tokens.

    When the model has been loaded, the form is unlocked and filled in with the texts of the example. When a
    visitor first opens the tab, it shows the answer for the example, which is computed once for all visitors.
    """
    gr.HTML(ui.lead("Why are these texts similar? Their similarity as a sum over pairs of their tokens."))
    texts = ui.text_fields("First text", "Second text")
    method = gr.Radio(_METHODS, value=_METHODS[0][1], label="Method")
    words = gr.Checkbox(value=False, label="Whole words in place of tokens")
    button = gr.Button("Show why", variant="primary", interactive=False)
    answer = gr.HTML(
        ui.message("An example follows when the model is loaded."), elem_id="why-answer", min_height=80
    )

    def example_texts() -> tuple[str, str]:
        """Return the two texts of the example: a sentence with copies of the token, and another sentence."""
        context = startup.context()
        example = shared.worked_example(context)
        with context.model.encoder() as encoder:
            token = encoder.tokenizer.decode_many([(example.token_id,)])[0].strip()
        copies = [token] * example.copies
        return " ".join([example.carrier, *copies]), example.anchor

    def respond(
        first: object,
        second: object,
        method: object,
        words: object,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        """Attribute the similarity of two texts, and return the answer. The arguments come from the form."""
        first_text = shared.checked_text("the first text", first)
        second_text = shared.checked_text("the second text", second)
        if not isinstance(method, str) or method not in set(AttributionMethod):
            raise InputError(f"the method is unknown: choose one of {', '.join(AttributionMethod)}")
        context = startup.context()
        with context.model.encoder() as encoder:
            similarity = why(
                encoder,
                first_text,
                second_text,
                method=method,
                run=context.run,
                words=words is True,
                progress=_shown_on(progress),
            )
        if similarity.run is not None and Path(similarity.run).is_relative_to(shared.EXAMPLES):
            # The path of the installed package is of no use to visitors.
            similarity = replace(similarity, run="RUN")
        lines = summary(similarity, _PAIRS)
        grouped = similarity.grouped()
        html = ui.render(
            "why.html.j2",
            headline=lines[-1],
            lines=lines[:-1],
            why=grouped,
            pairs=grouped.strongest(_PAIRS),
            rows=shaded_rows(grouped),
        )
        return [html]

    shared_example = ui.Once()

    def answer_example(progress: gr.Progress) -> list[Any]:
        """Return the answer for the texts of the example; only the first call computes it."""
        first_text, second_text = example_texts()
        return shared_example.get(
            lambda: respond(
                first=first_text,
                second=second_text,
                method=AttributionMethod.DELETION.value,
                words=False,
                progress=progress,
            )
        )

    example_or_error = ui.show_errors(answer_example, lambda error: [error])

    def open_tab(
        was_visited: bool,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how gradio asks for it
    ) -> list[Any]:
        return ui.on_first_visit(was_visited, 1, lambda: example_or_error(progress))

    def unlock_form() -> list[Any]:
        """Return values that unlock the two text fields and the button, and leave the answer unchanged.

        The text fields get the texts of the example.
        """
        fields = [gr.update(value=text, interactive=True) for text in example_texts()]
        return [*fields, gr.update(interactive=True), gr.skip()]

    unlock_or_error = ui.show_errors(unlock_form, lambda error: [gr.skip(), gr.skip(), gr.skip(), error])
    page.load(unlock_or_error, None, [*texts, button, answer], **ui.ON_STARTUP)
    with_progress = ui.ON_MODEL | {"show_progress": "full", "show_progress_on": [answer]}
    answer_or_error = ui.show_errors(respond, lambda error: [error])
    triggers = [button.click, *(text.submit for text in texts)]
    gr.on(triggers, answer_or_error, [*texts, method, words], [answer], **with_progress)
    visited = gr.State(False)
    tab.select(open_tab, [visited], [visited, answer], **with_progress)
