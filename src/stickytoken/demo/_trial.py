"""A trial: copies of a token in one of two sentences, compared with benign tokens. Pure but for encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import SYMPTOM_COPIES, KeyedPaths
from stickytoken.reports.figures.figure import (
    CONTROL,
    ORDINARY,
    STICKY,
    DataTable,
    ReportFigure,
    label,
    new_figure,
    stacked,
)
from stickytoken.reports.figures.symptom_curves import spread_out
from stickytoken.unit_vectors import exact_unit_vectors

Matrix = NDArray[np.float64]
Ids = tuple[int, ...]

_SEED = 42
_KEY = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Inputs of a trial.

    Attributes:
        anchor: the sentence that stays unchanged.
        carrier: the sentence that gets the copies.
        token: the token.
        placement: where the copies go.
        copies: number of copies, at least 1.
        benign: tokens to compare with; the first one is shown in the heat-map.
        others: up to 24 more sentences for the heat-map.
    """

    anchor: str
    carrier: str
    token: Token
    placement: Placement
    copies: int
    benign: tuple[Token, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """The texts to encode; pure data.

    Attributes:
        question: the question it answers.
        counts: numbers of copies on the curve, 0 first, ascending.
        anchor: content ids.
        curves: content ids of the carrier, by token (the one asked for first) and number of copies.
        names: of the sentences in the heat-map: A is the anchor, B the carrier, C and so on the others; those
            without room for the copies are left out.
        texts: these sentences.
        plain: their content ids.
        with_token: the same with the copies.
        with_benign: the same with copies of the first benign token; empty if there is none.
    """

    question: Question
    counts: tuple[int, ...]
    anchor: Ids
    curves: tuple[tuple[Ids, ...], ...]
    names: tuple[str, ...]
    texts: tuple[str, ...]
    plain: tuple[Ids, ...]
    with_token: tuple[Ids, ...]
    with_benign: tuple[Ids, ...]


@dataclass(frozen=True)
class Answer:
    """Cosine similarities.

    Attributes:
        trial: what was encoded.
        curve: of the two sentences, by number of copies.
        benign: the same for every benign token, shape (tokens, counts).
        plain: of the sentences of the heat-map, shape (texts, texts).
        with_token: rows with the copies, columns without.
        with_benign: the same with copies of the benign token; None if there is none.
    """

    trial: Trial
    curve: list[float]
    benign: Matrix
    plain: Matrix
    with_token: Matrix
    with_benign: Matrix | None

    @property
    def before(self) -> float:
        """Similarity without copies."""
        return self.curve[0]

    @property
    def after(self) -> float:
        """Similarity with the copies asked for."""
        return self.curve[self._place]

    @property
    def benign_after(self) -> list[float]:
        """The same with copies of each benign token."""
        return [float(value) for value in self.benign[:, self._place]]

    @property
    def _place(self) -> int:
        return self.trial.counts.index(self.trial.question.copies)


def plan_trial(encoder: IdReader, question: Question) -> Trial:
    """Insert the copies, at the same places for every token."""
    texts = (question.anchor, question.carrier, *question.others)
    tokenized = encoder.tokenize(texts)
    anchor, carrier = tokenized[:2]
    for name, text in (("sentence A", anchor), ("sentence B", carrier)):
        if not text.words:
            raise InputError(f"{name} has no tokens that {encoder.name} knows: write one with words")
    room = [n for n in (0, question.copies) if _fits(encoder, carrier, question, n)]
    _require_room(encoder, question, carrier, anchor, room)
    counts = tuple(
        n
        for n in sorted({0, question.copies, *SYMPTOM_COPIES})
        if n <= question.copies or _fits(encoder, carrier, question, n)
    )
    tokens = (question.token, *question.benign)
    # In the heat-map copies go into every sentence; those without room for them are left out.
    kept = [k for k, text in enumerate(tokenized) if text.words and _fits(encoder, text, question)]

    def filled(token: Token) -> tuple[Ids, ...]:
        return tuple(_with_copies(token, tokenized[k], question, question.copies, k) for k in kept)

    return Trial(
        question,
        counts,
        anchor.ids,
        tuple(tuple(_with_copies(token, carrier, question, n, 1) for n in counts) for token in tokens),
        tuple(ascii_uppercase[k] for k in kept),
        tuple(texts[k] for k in kept),
        tuple(tokenized[k].ids for k in kept),
        filled(question.token),
        filled(question.benign[0]) if question.benign else (),
    )


def measure_trial(encoder: IdReader, trial: Trial) -> Answer:
    """Encode everything in one call and compare."""
    curves = [ids for row in trial.curves for ids in row]
    parts = [[trial.anchor], curves, trial.plain, trial.with_token, trial.with_benign]
    units = exact_unit_vectors(encoder.encode_ids([ids for part in parts for ids in part]))
    anchor, inserted, plain, token, benign = np.split(units, np.cumsum([len(part) for part in parts])[:-1])
    similarities = (inserted @ anchor[0]).reshape(len(trial.curves), len(trial.counts))
    return Answer(
        trial,
        [float(value) for value in similarities[0]],
        similarities[1:],
        plain @ plain.T,
        token @ plain.T,
        benign @ plain.T if len(benign) else None,
    )


def _require_room(
    encoder: IdReader, question: Question, carrier: TokenizedText, anchor: TokenizedText, room: Sequence[int]
) -> None:
    longest = encoder.max_length
    if 0 not in room or not encoder.fits(anchor.ids):
        name, text = ("B", carrier) if 0 not in room else ("A", anchor)
        raise InputError(
            f"sentence {name} has {len(text.ids)} tokens, more than {encoder.name} reads ({longest} with its "
            "special tokens): shorten it"
        )
    if question.copies not in room:
        raise InputError(
            f"sentence B has {len(carrier.ids) + question.copies} tokens with {question.copies} copies, "
            f"more than {encoder.name} reads ({longest} including special tokens): shorten it or use fewer "
            "copies"
        )


def _fits(encoder: IdReader, text: TokenizedText, question: Question, copies: int | None = None) -> bool:
    count = question.copies if copies is None else copies
    return encoder.fits((*text.ids, *(question.token.id,) * count))


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


# Numbers of copies written below the curve, besides the one that was asked for.
_TICKS = (0, 1, 2, 4, 8, 16, 32)
_BAND = "rgba(0,158,115,0.15)"


def similarity_curve(
    answer: Answer, token: str, benign: list[str], mean_similarity: float | None
) -> ReportFigure:
    """Draw the similarity of the two sentences by number of copies."""
    counts = list(answer.trial.counts)
    asked = answer.trial.question.copies
    places = spread_out(counts)
    figure = new_figure(height=380)
    if benign:
        _draw_benign(figure, answer, places, len(benign))
    figure.add_scatter(
        x=places,
        y=np.round(answer.curve, 5).tolist(),
        customdata=counts,
        mode="lines+markers",
        line={"color": STICKY, "width": 2.5},
        marker={"size": [11 if n == asked else 6 for n in counts], "symbol": "diamond"},
        name=label(token),
        hovertemplate=f"{label(token)}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
    )
    if mean_similarity is not None:
        figure.add_hline(
            y=mean_similarity,
            line={"color": ORDINARY, "width": 1.5, "dash": "dot"},
            annotation={"text": "u", "showarrow": False},
        )
    figure.add_vline(x=places[counts.index(asked)], line={"color": ORDINARY, "width": 1})
    figure.update_xaxes(
        title_text="copies in sentence B",
        tickvals=places,
        ticktext=[str(n) if n in (*_TICKS, asked) else "" for n in counts],
        zeroline=False,
    )
    figure.update_yaxes(title_text="cosine similarity to sentence A", zeroline=False)
    figure.update_layout(legend={"y": -0.22, "yanchor": "top"}, margin={"t": 12}, hovermode="closest")
    return ReportFigure(
        "similarity-curve",
        "Similarity of the two sentences",
        figure,
        describe_answer(answer, token),
        "The similarity of the two sentences as copies of the token are added to sentence B; the thin line "
        "marks the number chosen. Green: the mean and the range of matched benign tokens. "
        + ("Dotted: the model's mean similarity u. " if mean_similarity is not None else "")
        + "A sticky token makes unrelated sentences more similar than benign tokens do. Many copies of any "
        "token make related sentences less similar. One pair proves nothing.",
        _curve_table(answer, token, benign),
    )


def describe_answer(answer: Answer, token: str) -> str:
    """Describe what the copies did in one sentence."""
    copies = answer.trial.question.copies
    text = (
        f"{copies} {'copy' if copies == 1 else 'copies'} of {token} "
        f"{'changes' if copies == 1 else 'change'} the similarity of the two sentences from "
        f"{_similarity(answer.before)} to {_similarity(answer.after)}"
    )
    others = answer.benign_after
    if not others:
        return text + "."
    mean, least, most = _similarity(float(np.mean(others))), min(others), max(others)
    text += f"; the same number of copies of {len(others)} matched benign"
    if len(others) == 1:
        return f"{text} token to {mean}."
    seen = "within their range" if least <= answer.after <= most else "outside their range"
    return f"{text} tokens to {mean} on average ({_similarity(least)} to {_similarity(most)}): it is {seen}."


def _similarity(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "\N{MINUS SIGN}")


def pair_heatmap(answer: Answer, token: str, benign: str | None) -> ReportFigure:
    """Draw similarities of a few sentences: unchanged, with copies of the token, and of a benign token."""
    copies = answer.trial.question.copies
    panels: list[tuple[str, Matrix]] = [
        ("without copies", answer.plain),
        (f"{copies} × {label(token)}", answer.with_token),
    ]
    if answer.with_benign is not None and benign is not None:
        panels.append((f"{copies} × {label(benign)} (benign)", answer.with_benign))
    names = list(answer.trial.names)
    plot = _draw_pairs(panels, names)
    return ReportFigure(
        "pair-heatmap",
        "All pairs",
        plot,
        _describe_pairs(panels),
        "Rows are sentences with the copies, columns are sentences without. Copies of a sticky token make "
        "all rows similar: unrelated pairs become brighter, and a sentence becomes less similar to its own "
        "original (the diagonal).",
        DataTable(
            ("sentence", "text", *(title for title, _ in _plain_titles(panels, copies, token, benign))),
            [
                (name, text, *(_mean_to_others(values, row) for _, values in panels))
                for row, (name, text) in enumerate(zip(names, answer.trial.texts, strict=True))
            ],
        ),
        # Every cell shows its number, and a narrow screen has no room for the scale.
        stacked(plot, len(panels), 350 * len(panels)) | {"coloraxis.showscale": False},
    )


def _plain_titles(
    panels: list[tuple[str, Matrix]], copies: int, token: str, benign: str | None
) -> list[tuple[str, Matrix]]:
    names = [
        "mean similarity to the others, without copies",
        f"with {copies} × {token}",
        f"with {copies} × {benign}",
    ]
    return [(name, values) for name, (_, values) in zip(names, panels, strict=False)]


def _mean_to_others(values: Matrix, row: int) -> float | None:
    others = np.delete(values[row], row)
    return float(others.mean()) if len(others) else None


def _describe_pairs(panels: list[tuple[str, Matrix]]) -> str:
    names = ("without copies", "with copies of the token", "with copies of the benign token")
    parts = []
    for name, (_, values) in zip(names, panels, strict=False):
        off = values[~np.eye(len(values), dtype=bool)]
        if len(off):
            parts.append(f"{name} {off.mean():.3f}")
    itself = [f"{np.diag(values).mean():.3f}" for _, values in panels[1:]]
    text = f"Mean similarity of different sentences: {', '.join(parts)}. " if parts else ""
    return f"{text}Mean similarity of a sentence with copies to its original: {', '.join(itself)}."


def _curve_table(answer: Answer, token: str, benign: list[str]) -> DataTable:
    rows = [(token, *answer.curve)]
    rows += [(f"{name} (benign)", *row) for name, row in zip(benign, answer.benign.tolist(), strict=True)]
    return DataTable(("token", *(f"{n} copies" for n in answer.trial.counts)), rows)


def _draw_benign(figure: go.Figure, answer: Answer, places: list[float], tokens: int) -> None:
    table = answer.benign
    figure.add_scatter(
        x=[*places, *reversed(places)],
        y=[*table.max(axis=0).round(5).tolist(), *table.min(axis=0)[::-1].round(5).tolist()],
        mode="lines",
        fill="toself",
        fillcolor=_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        x=places,
        y=table.mean(axis=0).round(5).tolist(),
        customdata=list(answer.trial.counts),
        mode="lines",
        line={"color": CONTROL, "width": 2.5, "dash": "dash"},
        name=f"{tokens} benign tokens: mean and range",
        hovertemplate="benign tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
    )


def _draw_pairs(panels: list[tuple[str, Matrix]], names: list[str]) -> go.Figure:
    plot = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[title for title, _ in panels],
        figure=new_figure(height=410),
    )
    for column, (_, values) in enumerate(panels, start=1):
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
            "cmin": min(0.0, *(float(values.min()) for _, values in panels)),
            "cmax": 1,
            "colorbar": {"title": {"text": "cosine"}, "thickness": 12, "len": 0.9},
        },
        margin={"t": 40},
    )
    return plot
