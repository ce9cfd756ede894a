"""Try: what copies of a token do to two sentences, compared with benign tokens."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray

from stickytoken.demo import _components as ui, context as shared
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import SYMPTOM_COPIES, KeyedPaths
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import cosine
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


def try_tab(startup: shared.Startup, page: gr.Blocks) -> None:
    texts = ui.text_fields(*SENTENCES)
    with gr.Row():
        token = gr.Textbox(label="Token", info=NAMING, elem_id="try-token", min_width=180, interactive=False)
        chosen = gr.Dropdown(
            [], value=None, label="From the run", info=_LISTED, min_width=180, interactive=False
        )
        placement = ui.placement_field()
        copies = ui.count_field("Copies", 1, shared.COPIES, interactive=False)
    button = gr.Button("Show what happens", variant="primary", interactive=False)
    answer = gr.HTML(ui.message(LOADING.format(model=visible(startup.model_name))), elem_id="try-answer")
    outputs = [answer, *ui.figure_slots(2), gr.HTML("", elem_id="try-sentences")]
    example = ui.Once()

    def respond(*asked: object) -> list[Any]:
        return _answered(startup.context(), *asked)

    def choose(anchor: object, carrier: object, token_id: object, *how: object) -> list[Any]:
        if token_id is None:
            return [gr.skip()] * (1 + len(outputs))
        name = startup.context().model.name_of(shared.checked_token_id(token_id))
        return [name, *answered(anchor, carrier, name, *how)]

    def first() -> list[Any]:
        context = startup.context()
        chosen = shared.worked_example(context)
        name = context.model.name_of(chosen.token_id)
        asked = (chosen.anchor, chosen.carrier, name, Placement.SUFFIX.value, chosen.copies)
        try:
            said = _answered(context, *asked, why=chosen.why)
        except StickyTokenError as error:
            said = _blank(ui.message(str(error)))
        listed = [
            (f"{context.model.shown_name(token_id)}: {verdict}", token_id)
            for token_id, verdict in shared.listed_tokens(context.content)
        ]
        info = _LISTED if listed else "no run of this model is open"
        return [
            *(gr.update(value=value, interactive=True) for value in asked),
            gr.update(choices=listed, info=info, interactive=bool(listed)),
            gr.update(interactive=True),
            *said,
        ]

    answered = ui.show_errors(respond, _blank)
    inputs = [*texts, token, placement, copies]
    filled = [*inputs, chosen, button]
    opening = ui.show_errors(
        lambda: example.get(first), lambda error: [*([gr.skip()] * len(filled)), *_blank(error)]
    )
    page.load(opening, None, [*filled, *outputs], **ui.ON_STARTUP)
    submitted = [token.submit, *(text.submit for text in texts), copies.submit]
    gr.on([button.click, *submitted, placement.input], answered, inputs, outputs, **ui.ON_MODEL)
    choosing = ui.show_errors(choose, lambda error: [gr.skip(), *_blank(error)])
    chosen.input(choosing, [*texts, chosen, placement, copies], [token, *outputs], **ui.ON_MODEL)


def _blank(error: str) -> list[Any]:
    return [error, *ui.slot_contents([None, None]), ""]


@dataclass(frozen=True)
class Trial:
    token: Token
    placement: Placement
    copies: int  # that were asked for, at least 1
    benign: tuple[Token, ...]  # tokens to compare with; the first one is in the heat map
    counts: list[int]  # numbers of copies on the curves, 0 first, ascending
    # Similarities of the two sentences by token, the one asked for first, and number of copies
    curves: Matrix
    # Of the sentences in the heat map: A stays as it is, B gets the copies, C and so on are others; those
    # without room for the copies are left out
    names: list[str]
    texts: list[str]  # these sentences
    # Similarities of their rows to the plain ones: without copies, with those of the token, and with those of
    # the first benign token if there is one
    heat: list[Matrix]

    def at(self, copies: int) -> list[float]:
        return [float(value) for value in self.curves[:, self.counts.index(copies)]]


def _answered(
    context: shared.AppContext,
    anchor: object,
    carrier: object,
    name: object,
    placement: object,
    copies: object,
    *,
    why: str = "",
) -> list[Any]:
    first, second = shared.checked_text("sentence A", anchor), shared.checked_text("sentence B", carrier)
    place = shared.checked_placement(placement)
    count = shared.checked_count("the number of copies", copies, 1, shared.COPIES)
    token = shared.named_token(context.model.vocabulary, name)
    benign = context.model.benign(token.id, context.run, _BENIGN)
    others = [text for text in shared.other_sentences(context) if text not in (first, second)]
    with context.model.encoder() as encoder:
        trial = try_token(encoder, [first, second, *others], token, benign, place, count)
    shown, *shown_benign = (context.model.shown_name(each.id) for each in (token, *benign))
    u = None if context.run is None else context.run.plan.mean_similarity
    said = ui.render(
        "answer.html.j2",
        said=describe_trial(trial, shown),
        name=shown,
        token_id=token.id,
        verdict=context.verdict_of(token.id),
        copies=count,
        where=_WHERE[place],
        benign=shown_benign,
        u=u,
        why=why,
    )
    figures = (similarity_curve(trial, shown, shown_benign, u), pair_heatmap(trial, shown, *shown_benign[:1]))
    rows = list(zip(trial.names, trial.texts, strict=True))
    sentences = ui.tables(("Sentences of the heat-map", DataTable(("sentence", "text"), rows)))
    return [said, *ui.slot_contents(figures), sentences]


def try_token(
    encoder: IdReader,
    texts: list[str],
    token: Token,
    benign: tuple[Token, ...],
    placement: Placement,
    copies: int,
) -> Trial:
    """Put copies of a token, and of benign ones at the same places, into the second text and the others."""
    tokenized = encoder.tokenize(texts)
    anchor, carrier = tokenized[:2]

    def fits(text: TokenizedText, count: int = copies) -> bool:
        return encoder.fits((*text.ids, *(token.id,) * count))

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
            f"sentence B has {len(carrier.ids) + copies} tokens with {copies} copies, "
            f"more than {encoder.name} reads ({longest} including special tokens): shorten it or use fewer "
            "copies"
        )
    counts = [n for n in sorted({0, copies, *SYMPTOM_COPIES}) if n <= copies or fits(carrier, n)]
    kept = [k for k, text in enumerate(tokenized) if text.words and fits(text)]

    def edited(token: Token, count: int, k: int) -> Ids:
        text = tokenized[k]
        path: tuple[int, ...] = ()
        if count == 0:
            return text.ids
        if placement is Placement.RANDOM:
            most = max(copies, SYMPTOM_COPIES[-1])
            paths = KeyedPaths(_SEED, _KEY, (len(text.words),), most, Insertion.IDS)
            # Independent of the token, so that all tokens have the same places.
            (path,) = paths.of(Token(k, ""))
        return copies_as_ids(token, text, placement, count, path)

    # Everything is encoded in one call.
    curves = [edited(each, count, 1) for each in (token, *benign) for count in counts]
    rows = [[edited(each, copies, k) for k in kept] for each in (token, *benign[:1])]
    parts = [[anchor.ids], curves, [tokenized[k].ids for k in kept], *rows]
    units = exact_unit_vectors(encoder.encode_ids([ids for part in parts for ids in part]))
    first, inserted, plain, *with_copies = np.split(units, np.cumsum([len(part) for part in parts])[:-1])
    return Trial(
        token,
        placement,
        copies,
        benign,
        counts,
        curves=(inserted @ first[0]).reshape(1 + len(benign), len(counts)),
        names=[ascii_uppercase[k] for k in kept],
        texts=[texts[k] for k in kept],
        heat=[each @ plain.T for each in (plain, *with_copies)],
    )


def describe_trial(trial: Trial, token: str) -> str:
    copies = trial.copies
    after, *others = trial.at(copies)
    text = (
        f"{copies} {'copy' if copies == 1 else 'copies'} of {token} "
        f"{'changes' if copies == 1 else 'change'} the similarity of the two sentences from "
        f"{cosine(trial.at(0)[0], 3)} to {cosine(after, 3)}"
    )
    if not others:
        return text + "."
    mean, least, most = cosine(float(np.mean(others)), 3), min(others), max(others)
    text += f"; the same number of copies of {len(others)} matched benign"
    if len(others) == 1:
        return f"{text} token to {mean}."
    seen = "within their range" if least <= after <= most else "outside their range"
    return f"{text} tokens to {mean} on average ({cosine(least, 3)} to {cosine(most, 3)}): it is {seen}."


# Numbers of copies written below the curve, besides the one that was asked for.
_TICKS = (0, 1, 2, 4, 8, 16, 32)


def similarity_curve(trial: Trial, token: str, benign: list[str], u: float | None) -> ReportFigure:
    counts, asked, (own, *others) = trial.counts, trial.copies, trial.curves.tolist()
    places = fig.spread_out(counts)
    figure = fig.new_figure(height=380)
    if others:
        fig.draw_ordinary(
            figure,
            places,
            fig.band(trial.curves[1:]),
            customdata=counts,
            name=f"{len(others)} benign tokens: mean and range",
            hovertemplate="benign tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
        )
    figure.add_scatter(
        x=places,
        y=np.round(own, 5).tolist(),
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
    names = (token, *(f"{name} (benign)" for name in benign))
    return ReportFigure(
        "similarity-curve",
        "Similarity of the two sentences",
        figure,
        describe_trial(trial, token),
        "The similarity of the two sentences as copies of the token are added to sentence B; the thin line "
        "marks the number chosen. Green: the mean and the range of matched benign tokens. "
        + ("Dotted: the model's mean similarity u. " if u is not None else "")
        + "A sticky token makes unrelated sentences more similar than benign tokens do. Many copies of any "
        "token make related sentences less similar. One pair proves nothing.",
        DataTable(
            ("token", *(f"{n} copies" for n in counts)),
            [(name, *row) for name, row in zip(names, (own, *others), strict=True)],
        ),
    )


def pair_heatmap(trial: Trial, token: str, benign: str = "") -> ReportFigure:
    copies, names, matrices = trial.copies, trial.names, trial.heat
    titles = ["without copies", f"{copies} × {fig.label(token)}", f"{copies} × {fig.label(benign)} (benign)"]
    columns = ["mean similarity to the others, without copies"]
    columns += [f"with {copies} × {name}" for name in (token, benign)]
    others = [values[~np.eye(len(names), dtype=bool)].reshape(len(names), -1) for values in matrices]
    # Sentences are most similar to themselves: colours are for the other pairs.
    shades = [float(value) for values in others for value in values.ravel()] or [0.0, 1.0]
    said = ""
    if len(names) > 1:
        what = ("without copies", "with copies of the token", "with copies of the benign token")
        means = [f"{name} {values.mean():.3f}" for name, values in zip(what, others, strict=False)]
        said = f"Mean similarity of different sentences: {', '.join(means)}. "
    itself = ", ".join(f"{np.diag(values).mean():.3f}" for values in matrices[1:])
    plot = fig.new_panels(titles[: len(matrices)], 410, 0.03, same_scale=True)
    for column, values in enumerate(matrices, start=1):
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
            "cmin": min(0.0, *shades),
            "cmax": max(shades),
            "colorbar": {"title": {"text": "cosine"}, "thickness": 12, "len": 0.9},
        },
        margin={"t": 40},
    )
    return ReportFigure(
        "pair-heatmap",
        "All pairs",
        plot,
        f"{said}Mean similarity of a sentence with copies to its original: {itself}.",
        "Rows are sentences with the copies, columns are sentences without. Copies of a sticky token make "
        "all rows similar: unrelated pairs become brighter, and a sentence becomes less similar to its own "
        "original (the diagonal).",
        DataTable(
            ("sentence", "text", *columns[: len(matrices)]),
            [
                (name, text, *(float(values[row].mean()) if len(names) > 1 else None for values in others))
                for row, (name, text) in enumerate(zip(names, trial.texts, strict=True))
            ],
        ),
        # Every cell shows its number, and a narrow screen has no room for the scale.
        fig.stacked(plot, len(matrices), 350 * len(matrices)) | {"coloraxis.showscale": False},
    )
