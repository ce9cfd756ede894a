"""Try: what copies of a token do to two sentences, compared with benign tokens."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import gradio as gr
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from stickytoken.demo import _components as ui
from stickytoken.demo.context import (
    COPIES,
    Startup,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
    listed_tokens,
    named_token,
    other_sentences,
    worked_example,
)
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import SYMPTOM_COPIES, KeyedPaths
from stickytoken.reports.figures import figure as fig
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import visible

Matrix = NDArray[np.float64]
Ids = tuple[int, ...]

_SEED = 42
_KEY = 0
_BENIGN = 4
_WHERE = {
    Placement.PREFIX: "before sentence B",
    Placement.SUFFIX: "after sentence B",
    Placement.RANDOM: "between the words of sentence B",
}
SENTENCES = ("Sentence A, which stays as it is", "Sentence B, which gets the copies")
NAMING = "as in the vocabulary, or # and its id"
_LISTED = "flagged tokens, then ordinary ones"
LOADING = "{model} is being loaded; a worked example follows in a few seconds. Explore and Compare are ready."


def try_tab(startup: Startup, page: gr.Blocks) -> None:
    tab = Try(startup)
    texts = ui.text_fields(*SENTENCES)
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, elem_id="try-token", min_width=180, interactive=False)
        chosen = gr.Dropdown(
            [], value=None, label="From the run", info=_LISTED, min_width=180, interactive=False
        )
        placement = ui.placement_field()
        copies = ui.count_field("Copies", 1, COPIES, interactive=False)
    button = gr.Button("Show what happens", variant="primary", interactive=False)
    answer = gr.HTML(ui.message(LOADING.format(model=visible(startup.model_name))), elem_id="try-answer")
    outputs = [answer, *ui.figure_slots(2), gr.HTML("", elem_id="try-sentences")]

    def respond(*asked: object) -> list[Any]:
        return tab.answered(tab.answer(*asked))

    answered = ui.show_errors(respond, _blank)

    def choose(anchor: object, carrier: object, token_id: object, *how: object) -> list[Any]:
        if token_id is None:
            return [gr.skip()] * (1 + len(outputs))
        name = startup.context().model.name_of(checked_token_id(token_id))
        return [name, *answered(anchor, carrier, name, *how)]

    inputs = [*texts, token, placement, copies]
    filled = [*inputs, chosen, button]
    opening = ui.show_errors(tab.opening, lambda error: [*([gr.skip()] * len(filled)), *_blank(error)])
    page.load(opening, None, [*filled, *outputs], **ui.ON_STARTUP)
    submitted = [token.submit, *(text.submit for text in texts), copies.submit]
    gr.on([button.click, *submitted, placement.input], answered, inputs, outputs, **ui.ON_MODEL)
    choosing = ui.show_errors(choose, lambda error: [gr.skip(), *_blank(error)])
    chosen.input(choosing, [*texts, chosen, placement, copies], [token, *outputs], **ui.ON_MODEL)


def _blank(error: str) -> list[Any]:
    """Return outputs that are empty except for an error message."""
    return [error, *ui.slot_contents([None, None]), ""]


class Try:
    """Contents of the tab. Requests wait until the model is loaded."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._opening = ui.Once()

    def answer(
        self, anchor: object, carrier: object, name: object, placement: object, copies: object
    ) -> TrialAnswer:
        """Put copies of a token into sentence B."""
        texts = checked_text("sentence A", anchor), checked_text("sentence B", carrier)
        place, count = checked_placement(placement), checked_count("the number of copies", copies, 1, COPIES)
        context = self._startup.context()
        model = context.model
        token = named_token(model.vocabulary, name)
        benign = model.benign(token.id, context.run, _BENIGN)
        others = other_sentences(context.content, context.corpus)
        others = tuple(text for text in others if text not in texts)
        question = Question(*texts, token, place, count, benign, others)
        with model.encoder() as encoder:
            return measure_trial(encoder, plan_trial(encoder, question))

    def answered(self, answer: TrialAnswer, why: str = "") -> list[Any]:
        """Return the values of the tab's outputs: words, the curve, the heat-map and its sentences."""
        context, question = self._startup.context(), answer.trial.question
        token = context.model.shown_name(question.token.id)
        benign = [context.model.shown_name(each.id) for each in question.benign]
        u = None if context.run is None else context.run.plan.mean_similarity
        said = ui.render(
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
        figures = (similarity_curve(answer, token, benign, u), pair_heatmap(answer, token, benign[0]))
        rows = list(zip(answer.trial.names, answer.trial.texts, strict=True))
        sentences = ui.tables(("Sentences of the heat-map", DataTable(("sentence", "text"), rows)))
        return [said, *ui.slot_contents(figures), sentences]

    def opening(self) -> list[Any]:
        """Return the first values of all inputs and outputs; computed once for all visitors."""
        return self._opening.get(self._opened)

    def _opened(self) -> list[Any]:
        context = self._startup.context()
        example = worked_example(context)
        name = context.model.name_of(example.token_id)
        asked = (example.anchor, example.carrier, name, Placement.SUFFIX.value, example.copies)
        try:
            answered = self.answered(self.answer(*asked), example.why)
        except StickyTokenError as error:
            answered = _blank(ui.message(str(error)))
        listed = [
            (f"{context.model.shown_name(token_id)}: {verdict}", token_id)
            for token_id, verdict in listed_tokens(context.content)
        ]
        info = _LISTED if listed else "no run of this model is open"
        return [
            *(gr.update(value=value, interactive=True) for value in asked),
            gr.update(choices=listed, info=info, interactive=bool(listed)),
            gr.update(interactive=True),
            *answered,
        ]


@dataclass(frozen=True, slots=True)
class Question:
    anchor: str  # the sentence that stays unchanged
    carrier: str  # the sentence that gets the copies
    token: Token
    placement: Placement  # where the copies go
    copies: int  # number of copies, at least 1
    benign: tuple[Token, ...]  # tokens to compare with; the first one is shown in the heat-map
    others: tuple[str, ...]  # up to 24 more sentences for the heat-map


@dataclass(frozen=True)
class Trial:
    question: Question
    counts: tuple[int, ...]  # numbers of copies on the curve, 0 first, ascending
    anchor: Ids  # content ids
    # Content ids of the carrier, by token (the one asked for first) and number of copies
    curves: tuple[tuple[Ids, ...], ...]
    # Of the sentences in the heat-map: A is the anchor, B the carrier, C and so on the others; those without
    # room for the copies are left out
    names: tuple[str, ...]
    texts: tuple[str, ...]  # these sentences
    plain: tuple[Ids, ...]  # their content ids
    with_token: tuple[Ids, ...]  # the same with the copies
    with_benign: tuple[Ids, ...]  # the same with copies of the first benign token; empty if there is none


@dataclass(frozen=True)
class TrialAnswer:
    trial: Trial  # what was encoded
    curve: list[float]  # of the two sentences, by number of copies
    benign: Matrix  # the same for every benign token, shape (tokens, counts)
    plain: Matrix  # of the sentences of the heat-map, shape (texts, texts)
    with_token: Matrix  # rows with the copies, columns without
    with_benign: Matrix | None  # the same with copies of the benign token; None if there is none

    @property
    def before(self) -> float:
        return self.curve[0]

    @property
    def after(self) -> float:
        return self.curve[self._place]

    @property
    def benign_after(self) -> list[float]:
        return [float(value) for value in self.benign[:, self._place]]

    @property
    def _place(self) -> int:
        return self.trial.counts.index(self.trial.question.copies)


def plan_trial(encoder: IdReader, question: Question) -> Trial:
    """Insert the copies, at the same places for every token."""
    texts = (question.anchor, question.carrier, *question.others)
    tokenized = encoder.tokenize(texts)
    anchor, carrier = tokenized[:2]

    def fits(text: TokenizedText, copies: int = question.copies) -> bool:
        return encoder.fits((*text.ids, *(question.token.id,) * copies))

    longest = encoder.max_length
    for name, text in (("sentence A", anchor), ("sentence B", carrier)):
        if not text.words:
            raise InputError(f"{name} has no tokens that {encoder.name} knows: write one with words")
    for name, text in (("sentence B", carrier), ("sentence A", anchor)):
        if not fits(text, 0):
            raise InputError(
                f"{name} has {len(text.ids)} tokens, more than {encoder.name} reads ({longest} with its "
                "special tokens): shorten it"
            )
    if not fits(carrier):
        raise InputError(
            f"sentence B has {len(carrier.ids) + question.copies} tokens with {question.copies} copies, "
            f"more than {encoder.name} reads ({longest} including special tokens): shorten it or use fewer "
            "copies"
        )
    counts = [
        n for n in sorted({0, question.copies, *SYMPTOM_COPIES}) if n <= question.copies or fits(carrier, n)
    ]
    # In the heat-map copies go into every sentence; those without room for them are left out.
    kept = [k for k, text in enumerate(tokenized) if text.words and fits(text)]

    def filled(token: Token) -> tuple[Ids, ...]:
        return tuple(_with_copies(token, tokenized[k], question, question.copies, k) for k in kept)

    return Trial(
        question,
        tuple(counts),
        anchor.ids,
        tuple(
            tuple(_with_copies(token, carrier, question, n, 1) for n in counts)
            for token in (question.token, *question.benign)
        ),
        tuple(ascii_uppercase[k] for k in kept),
        tuple(texts[k] for k in kept),
        tuple(tokenized[k].ids for k in kept),
        filled(question.token),
        filled(question.benign[0]) if question.benign else (),
    )


def _with_copies(token: Token, text: TokenizedText, question: Question, copies: int, place: int) -> Ids:
    if copies == 0:
        return text.ids
    path: tuple[int, ...] = ()
    if question.placement is Placement.RANDOM:
        most = max(question.copies, SYMPTOM_COPIES[-1])
        paths = KeyedPaths(_SEED, _KEY, (len(text.words),), most, Insertion.IDS)
        # Independent of the token, so that all tokens have the same places.
        (path, *_) = paths.of(Token(place, ""))
    return copies_as_ids(token, text, question.placement, copies, path)


def measure_trial(encoder: IdReader, trial: Trial) -> TrialAnswer:
    """Encode everything in one call and compare."""
    curves = [ids for row in trial.curves for ids in row]
    parts = [[trial.anchor], curves, trial.plain, trial.with_token, trial.with_benign]
    units = exact_unit_vectors(encoder.encode_ids([ids for part in parts for ids in part]))
    anchor, inserted, plain, token, benign = np.split(units, np.cumsum([len(part) for part in parts])[:-1])
    similarities = (inserted @ anchor[0]).reshape(len(trial.curves), len(trial.counts))
    return TrialAnswer(
        trial,
        [float(value) for value in similarities[0]],
        similarities[1:],
        plain @ plain.T,
        token @ plain.T,
        benign @ plain.T if len(benign) else None,
    )


def describe_answer(answer: TrialAnswer, token: str) -> str:
    """Describe what the copies did in one sentence."""

    def similarity(value: float) -> str:
        return f"{round(value, 3) + 0.0:.3f}".replace("-", "\N{MINUS SIGN}")

    copies = answer.trial.question.copies
    text = (
        f"{copies} {'copy' if copies == 1 else 'copies'} of {token} "
        f"{'changes' if copies == 1 else 'change'} the similarity of the two sentences from "
        f"{similarity(answer.before)} to {similarity(answer.after)}"
    )
    others = answer.benign_after
    if not others:
        return text + "."
    mean, least, most = similarity(float(np.mean(others))), min(others), max(others)
    text += f"; the same number of copies of {len(others)} matched benign"
    if len(others) == 1:
        return f"{text} token to {mean}."
    seen = "within their range" if least <= answer.after <= most else "outside their range"
    return f"{text} tokens to {mean} on average ({similarity(least)} to {similarity(most)}): it is {seen}."


# Numbers of copies written below the curve, besides the one that was asked for.
_TICKS = (0, 1, 2, 4, 8, 16, 32)


def similarity_curve(answer: TrialAnswer, token: str, benign: list[str], u: float | None) -> ReportFigure:
    """Draw the similarity of the two sentences by number of copies."""
    rows = [(token, *answer.curve)]
    rows += [(f"{name} (benign)", *row) for name, row in zip(benign, answer.benign.tolist(), strict=True)]
    return ReportFigure(
        "similarity-curve",
        "Similarity of the two sentences",
        _curve(answer, token, u),
        describe_answer(answer, token),
        "The similarity of the two sentences as copies of the token are added to sentence B; the thin line "
        "marks the number chosen. Green: the mean and the range of matched benign tokens. "
        + ("Dotted: the model's mean similarity u. " if u is not None else "")
        + "A sticky token makes unrelated sentences more similar than benign tokens do. Many copies of any "
        "token make related sentences less similar. One pair proves nothing.",
        DataTable(("token", *(f"{n} copies" for n in answer.trial.counts)), rows),
    )


def _curve(answer: TrialAnswer, token: str, u: float | None) -> go.Figure:
    counts, asked = list(answer.trial.counts), answer.trial.question.copies
    places = fig.spread_out(counts)
    figure = fig.new_figure(height=380)
    if len(answer.benign):
        low, mean, high = (
            values.round(5).tolist()
            for values in (answer.benign.min(axis=0), answer.benign.mean(axis=0), answer.benign.max(axis=0))
        )
        fig.draw_ordinary(
            figure,
            places,
            (low, mean, high),
            customdata=counts,
            name=f"{len(answer.benign)} benign tokens: mean and range",
            hovertemplate="benign tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
        )
    figure.add_scatter(
        x=places,
        y=np.round(answer.curve, 5).tolist(),
        customdata=counts,
        mode="lines+markers",
        line={"color": fig.STICKY, "width": 2.5},
        marker={"size": [11 if n == asked else 6 for n in counts], "symbol": "diamond"},
        name=fig.label(token),
        hovertemplate=f"{fig.label(token)}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
    )
    if u is not None:
        figure.add_hline(y=u, line=fig.DOTTED_LINE, annotation={"text": "u", "showarrow": False})
    figure.add_vline(x=places[counts.index(asked)], line=fig.THIN_LINE)
    figure.update_xaxes(
        title_text="copies in sentence B",
        tickvals=places,
        ticktext=[str(n) if n in (*_TICKS, asked) else "" for n in counts],
        zeroline=False,
    )
    figure.update_yaxes(title_text="cosine similarity to sentence A", zeroline=False)
    figure.update_layout(legend={"y": -0.22, "yanchor": "top"}, margin={"t": 12}, hovermode="closest")
    return figure


def pair_heatmap(answer: TrialAnswer, token: str, benign: str | None) -> ReportFigure:
    """Draw similarities of a few sentences: unchanged, with copies of the token, and of a benign token."""
    copies, names = answer.trial.question.copies, list(answer.trial.names)
    panels = {"without copies": answer.plain, f"{copies} × {fig.label(token)}": answer.with_token}
    columns = ["mean similarity to the others, without copies", f"with {copies} × {token}"]
    if answer.with_benign is not None and benign is not None:
        panels[f"{copies} × {fig.label(benign)} (benign)"] = answer.with_benign
        columns.append(f"with {copies} × {benign}")
    matrices = list(panels.values())
    others = [values[~np.eye(len(names), dtype=bool)].reshape(len(names), -1) for values in matrices]
    said = ""
    if len(names) > 1:
        what = ("without copies", "with copies of the token", "with copies of the benign token")
        means = [f"{name} {values.mean():.3f}" for name, values in zip(what, others, strict=False)]
        said = f"Mean similarity of different sentences: {', '.join(means)}. "
    itself = ", ".join(f"{np.diag(values).mean():.3f}" for values in matrices[1:])
    plot = _heatmaps(panels, names)
    return ReportFigure(
        "pair-heatmap",
        "All pairs",
        plot,
        f"{said}Mean similarity of a sentence with copies to its original: {itself}.",
        "Rows are sentences with the copies, columns are sentences without. Copies of a sticky token make "
        "all rows similar: unrelated pairs become brighter, and a sentence becomes less similar to its own "
        "original (the diagonal).",
        DataTable(
            ("sentence", "text", *columns),
            [
                (name, text, *(float(values[row].mean()) if len(names) > 1 else None for values in others))
                for row, (name, text) in enumerate(zip(names, answer.trial.texts, strict=True))
            ],
        ),
        # Every cell shows its number, and a narrow screen has no room for the scale.
        fig.stacked(plot, len(panels), 350 * len(panels)) | {"coloraxis.showscale": False},
    )


def _heatmaps(panels: dict[str, Matrix], names: list[str]) -> go.Figure:
    plot = fig.new_panels(list(panels), 410, 0.03, same_scale=True)
    for column, values in enumerate(panels.values(), start=1):
        plot.add_heatmap(
            z=np.round(values, 3).tolist(),
            x=names,
            y=names,
            coloraxis="coloraxis",
            texttemplate="%{z:.2f}",
            textfont={"size": 11},
            hovertemplate="copies in %{y}, compared with %{x}: %{z:.3f}<extra></extra>",
            row=1,
            col=column,
        )
    plot.update_yaxes(autorange="reversed", showgrid=False)
    plot.update_xaxes(showgrid=False)
    plot.update_yaxes(title_text="sentence with the copies", col=1)
    plot.update_layout(
        coloraxis={
            "colorscale": "Cividis",
            "cmin": min(0.0, *(float(values.min()) for values in panels.values())),
            "cmax": 1,
            "colorbar": {"title": {"text": "cosine"}, "thickness": 12, "len": 0.9},
        },
        margin={"t": 40},
    )
    return plot
