"""Figures of a trial: one pair by number of copies, and all pairs of a few sentences. Pure."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.demo._trial import Answer, Matrix
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.figures.panels import stacked
from stickytoken.reports.figures.style import CONTROL, ORDINARY, STICKY, label, new_figure
from stickytoken.reports.figures.symptom_curves import spread_out

# Numbers of copies written below the curve, besides the one that was asked for.
_TICKS = (0, 1, 2, 4, 8, 16, 32)
_BAND = "rgba(0,158,115,0.15)"


def similarity_curve(
    answer: Answer, token: str, benign: list[str], mean_similarity: float | None
) -> ReportFigure:
    """Draw the similarity of the two sentences by number of copies.

    Args:
        answer: what was measured.
        token: its name.
        benign: names of the benign tokens.
        mean_similarity: u of the run; None draws no line.
    """
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
