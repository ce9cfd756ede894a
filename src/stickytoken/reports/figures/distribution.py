"""The distribution of a statistic over the vocabulary, with the flagged tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.detection.run_folder import is_flagged
from stickytoken.reports.figures.figure import (
    COLORS,
    ORDINARY,
    STICKY,
    SYMBOLS,
    DataTable,
    empty_figure,
    label,
    new_figure,
)
from stickytoken.vocabulary import Kind

_FEWEST_BINS, _MOST_BINS = 5, 120
_NO_SPAN = 1e-9
_NAMED = 5


def bins(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return counts and edges: bins of the width of Freedman and Diaconis, in limited number."""
    low, high = float(values.min()), float(values.max())
    if high - low < _NO_SPAN:
        return np.array([len(values)]), np.array([low - 0.5e-3, high + 0.5e-3])
    width = 2 * float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / len(values) ** (1 / 3)
    wanted = (high - low) / width if width > 0 else _MOST_BINS
    counts, edges = np.histogram(values, bins=int(np.clip(np.ceil(wanted), _FEWEST_BINS, _MOST_BINS)))
    return counts, edges


def draw_distribution(
    tokens: pl.DataFrame, column: str, name: str, lines: dict[str, float] | None = None
) -> go.Figure:
    """Draw a histogram with a mark for every flagged token."""
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return empty_figure(f"no token has a {name}")
    counts, edges = bins(measured[column].to_numpy())
    figure = new_figure()
    centers = (edges[:-1] + edges[1:]) / 2
    figure.add_bar(
        x=centers.round(6).tolist(),
        y=[int(count) or None for count in counts],
        width=float(edges[1] - edges[0]) * 0.96,
        marker={"color": ORDINARY, "line": {"width": 0}, "opacity": 0.65},
        customdata=np.column_stack([edges[:-1], edges[1:]]).round(5).tolist(),
        hovertemplate="%{y:,} tokens from %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
        name="tokens",
    )
    for verdict in ("topical", "sticky"):
        _mark(figure, measured.filter(verdict=verdict).sort(column, descending=True), column, verdict)
    for place, (text, value) in enumerate((lines or {}).items()):
        figure.add_vline(x=value, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            x=value,
            y=1 - 0.08 * place,
            yref="paper",
            text=text,
            showarrow=False,
            xanchor="left",
            xshift=4,
        )
    figure.update_xaxes(title_text=name)
    figure.update_yaxes(title_text="tokens (log scale)", type="log", dtick=1, rangemode="tozero")
    top = float(np.log10(max(int(counts.max()), 2))) + 0.35
    figure.update_yaxes(range=[-0.3, top], tickformat=",d")
    figure.update_layout(bargap=0, hovermode="closest")
    return figure


def _mark(figure: go.Figure, flagged: pl.DataFrame, column: str, verdict: str) -> None:
    if flagged.is_empty():
        return
    names = [label(token) for token in flagged["token"]]
    named = verdict == "sticky" and len(names) <= _NAMED
    figure.add_scatter(
        x=flagged[column].round(6).to_list(),
        y=[0.72] * len(names),
        mode="markers+text" if named else "markers",
        text=names if named else None,
        textposition="top center",
        customdata=names,
        hovertemplate=f"%{{customdata}}: %{{x:.4f}}<extra>{verdict}</extra>",
        marker={"color": COLORS[verdict], "symbol": SYMBOLS[verdict], "size": 11},
        cliponaxis=False,
        name=f"{verdict} ({len(names)})",
    )


def describe_distribution(tokens: pl.DataFrame, column: str, name: str) -> str:
    """Describe the distribution."""
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return f"No token has a {name}."
    low, middle, high = (
        float(np.quantile(measured[column].to_numpy(), level)) for level in (0.05, 0.5, 0.95)
    )
    text = (
        f"Histogram of the {name} of {len(measured):,} tokens: median {middle:.4f}, 90% of them between "
        f"{low:.4f} and {high:.4f}."
    )
    for verdict in ("sticky", "topical"):
        flagged = measured.filter(verdict=verdict)
        if len(flagged):
            span = sorted(flagged[column].to_list())
            where = f"at {span[0]:.4f}" if len(span) == 1 else f"between {span[0]:.4f} and {span[-1]:.4f}"
            text += f" {len(flagged)} {verdict} {where}."
    return text


def table_distribution(tokens: pl.DataFrame, column: str) -> DataTable:
    """Return the histogram in at most twelve rows, with the flagged tokens."""
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return DataTable((), ())
    values = measured[column].to_numpy()
    edges = np.linspace(values.min(), values.max(), 13) if np.ptp(values) >= _NO_SPAN else bins(values)[1]
    sticky = measured.filter(verdict="sticky")[column].to_numpy()
    counts, marked = np.histogram(values, edges)[0], np.histogram(sticky, edges)[0]
    rows = [
        (float(low), float(high), int(count), int(mark))
        for low, high, count, mark in zip(edges[:-1], edges[1:], counts, marked, strict=True)
        if count
    ]
    return DataTable(("from", "to", "tokens", "of them sticky"), rows)


_MOST_SCRIPTS = 7
_LONGEST = 10
_DECILES = 10


@dataclass(frozen=True)
class Breakdown:
    """Numbers of tokens by one property.

    Attributes:
        name: of the property.
        groups: its values, in order.
        tokens: tokens that were looked at, by group.
        sticky: of them, the sticky ones.
    """

    name: str
    groups: Sequence[str]
    tokens: Sequence[int]
    sticky: Sequence[int]


def breakdowns(tokens: pl.DataFrame) -> list[Breakdown]:
    """Count tokens by kind of entry, script, length and position."""
    scripts = [
        name
        for name, _ in sorted(tokens["script"].value_counts().iter_rows(), key=lambda row: (-row[1], row[0]))
    ]
    kept = scripts[:_MOST_SCRIPTS]
    kinds = [kind.value for kind in Kind if (tokens["entry"] == kind.value).any()]
    lengths = [str(length) for length in range(1, _LONGEST)] + [f"{_LONGEST}+"]
    tenths = [f"{10 * place}–{10 * place + 10}" for place in range(_DECILES)]
    length = pl.col("length").clip(1, _LONGEST)
    shown = tokens.select(
        "verdict",
        entry=pl.col("entry"),
        script=pl.when(pl.col("script").is_in(kept)).then(pl.col("script")).otherwise(pl.lit("others")),
        length=pl.when(length == _LONGEST).then(pl.lit(lengths[-1])).otherwise(length.cast(pl.String)),
        place=(pl.col("position") * _DECILES).floor().clip(0, _DECILES - 1).cast(pl.Int64),
    ).with_columns(position=pl.col("place").replace_strict(dict(enumerate(tenths)), default=None))
    groups = {
        "entry": kinds,
        "script": [*kept, *(["others"] if len(scripts) > _MOST_SCRIPTS else [])],
        "length": lengths,
        "position": tenths,
    }
    titles = {
        "entry": "kind of entry",
        "script": "script of its letters",
        "length": "length in characters",
        "position": "position, % of the vocabulary",
    }
    return [_breakdown(shown, column, titles[column], values) for column, values in groups.items()]


def _breakdown(shown: pl.DataFrame, column: str, title: str, groups: Sequence[str]) -> Breakdown:
    def counted(rows: pl.DataFrame) -> list[int]:
        found = dict(rows[column].drop_nulls().value_counts().iter_rows())
        return [int(found.get(group, 0)) for group in groups]

    return Breakdown(title, groups, counted(shown), counted(shown.filter(verdict="sticky")))


def draw_composition(parts: Sequence[Breakdown]) -> go.Figure:
    """Draw shares of all tokens and of the sticky ones, one panel per property."""
    if not parts or not sum(parts[0].tokens):
        return empty_figure("this run examined no tokens")
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[part.name for part in parts],
        vertical_spacing=0.22,
        horizontal_spacing=0.1,
        figure=new_figure(height=560),
    )
    for place, part in enumerate(parts):
        row, column = place // 2 + 1, place % 2 + 1
        for name, counts, color in (
            ("all tokens examined", part.tokens, ORDINARY),
            ("sticky tokens", part.sticky, STICKY),
        ):
            total = sum(counts)
            if not total:
                continue
            figure.add_bar(
                x=list(part.groups),
                y=[round(100 * count / total, 2) for count in counts],
                customdata=list(counts),
                name=f"{name} ({total:,})" if place == 0 else name,
                legendgroup=name,
                showlegend=place == 0,
                marker={
                    "color": color,
                    "opacity": 0.65 if color == ORDINARY else 1,
                    "pattern": {"shape": "" if color == ORDINARY else "/", "size": 5, "solidity": 0.25},
                },
                hovertemplate=f"%{{x}}: %{{y:.1f}} % (%{{customdata:,}})<extra>{name}</extra>",
                row=row,
                col=column,
            )
        figure.update_xaxes(
            type="category", tickangle=-45 if len(part.groups) > _MOST_SCRIPTS else None, row=row, col=column
        )
    figure.update_yaxes(title_text="% of them", col=1)
    figure.update_layout(
        barmode="group",
        bargap=0.25,
        bargroupgap=0,
        legend={"y": -0.14, "yanchor": "top"},
        hovermode="closest",
    )
    return figure


def describe_composition(parts: Sequence[Breakdown]) -> str:
    """Describe what the sticky tokens have in common."""
    if not parts or not sum(parts[0].tokens):
        return "This run examined no tokens."
    total, sticky = sum(parts[0].tokens), sum(parts[0].sticky)
    if not sticky:
        most = ", ".join(
            f"{count / total:.0%} {group}" for group, count in _largest(parts[0].groups, parts[0].tokens)
        )
        return f"None of {total:,} tokens is sticky. By kind they are {most}."
    sentences = [f"{sticky} of {total:,} tokens {'is' if sticky == 1 else 'are'} sticky."]
    for part in parts:
        found = "; ".join(
            f"{group}: {count} of {part.tokens[list(part.groups).index(group)]:,}"
            for group, count in _largest(part.groups, part.sticky)
        )
        sentences.append(f"By {part.name}, {found}.")
    return " ".join(sentences)


def _largest(groups: Sequence[str], counts: Sequence[int]) -> list[tuple[str, int]]:
    ranked = sorted(zip(groups, counts, strict=True), key=lambda pair: -pair[1])
    return [(group, count) for group, count in ranked[:3] if count]


def table_composition(parts: Sequence[Breakdown]) -> DataTable:
    """Return a table with one row per group: tokens, sticky tokens and their share."""
    rows = [
        (part.name, group, tokens, sticky, f"{sticky / tokens:.2%}" if tokens else None)
        for part in parts
        for group, tokens, sticky in zip(part.groups, part.tokens, part.sticky, strict=True)
        if tokens
    ]
    return DataTable(("property", "group", "tokens", "sticky", "share sticky"), rows)


# Of the others so many are drawn: enough to see the cloud, few enough for a phone.
DRAWN_POINTS = 2500
_THIN = 5


def thinned(tokens: pl.DataFrame, limit: int = DRAWN_POINTS) -> pl.DataFrame:
    """Choose all flagged tokens and a random part of the others, the same on every call."""
    others = tokens.filter(~is_flagged())
    if len(others) > limit:
        kept = np.random.default_rng([len(others), _THIN]).choice(len(others), size=limit, replace=False)
        others = others[np.sort(kept)]
    return pl.concat([others, tokens.filter(is_flagged())])


def draw_effect_scatter(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> go.Figure:
    """Draw a cloud of ordinary tokens, and the flagged ones by colour and shape."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return empty_figure(f"no token has a {names[0]} and a {names[1]}")
    figure = new_figure(height=430)
    drawn = thinned(measured)
    others = drawn.filter(~is_flagged())
    in_all = len(measured.filter(~is_flagged()))
    _points(figure, others, x, y, f"other tokens ({len(others):,} of {in_all:,} drawn)")
    for verdict in ("topical", "sticky"):
        _flagged(figure, drawn.filter(verdict=verdict), x, y, verdict)
    figure.update_xaxes(title_text=names[0])
    figure.update_yaxes(title_text=names[1])
    figure.update_layout(hovermode="closest")
    return figure


def _points(figure: go.Figure, rows: pl.DataFrame, x: str, y: str, name: str) -> None:
    figure.add_scatter(
        x=rows[x].round(4).to_list(),
        y=rows[y].round(4).to_list(),
        customdata=[label(token) for token in rows["token"]],
        mode="markers",
        marker={"color": ORDINARY, "size": 4, "opacity": 0.45},
        hovertemplate="%{customdata}<br>%{x:.4f}, %{y:.4f}<extra></extra>",
        name=name,
    )


def _flagged(figure: go.Figure, rows: pl.DataFrame, x: str, y: str, verdict: str) -> None:
    if rows.is_empty():
        return
    names = [label(token) for token in rows["token"]]
    named = verdict == "sticky" and len(names) <= _NAMED
    figure.add_scatter(
        x=rows[x].round(4).to_list(),
        y=rows[y].round(4).to_list(),
        customdata=names,
        text=names if named else None,
        textposition="top center",
        mode="markers+text" if named else "markers",
        marker={"color": COLORS[verdict], "symbol": SYMBOLS[verdict], "size": 11},
        hovertemplate=f"%{{customdata}}<br>%{{x:.4f}}, %{{y:.4f}}<extra>{verdict}</extra>",
        cliponaxis=False,
        name=f"{verdict} ({len(names)})",
    )


def describe_effect_scatter(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> str:
    """Describe the cloud and the flagged tokens."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return f"No token has a {names[0]} and a {names[1]}."
    text = f"{names[0].capitalize()} against {names[1]} of {len(measured):,} tokens."
    for verdict, rows in (("sticky", measured.filter(verdict="sticky")), ("all", measured)):
        if len(rows):
            who = "All tokens" if verdict == "all" else f"{len(rows)} sticky"
            medians = (float(rows[x].median()), float(rows[y].median()))  # type: ignore[arg-type]
            text += f" {who}: medians {medians[0]:.4f} and {medians[1]:.4f}."
    return text


def table_effect_scatter(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> DataTable:
    """Return the flagged tokens, and the quartiles of all tokens."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return DataTable((), ())
    flagged = measured.filter(is_flagged()).sort(x, descending=True)
    rows = list(flagged.select("token", "verdict", x, y).head(20).iter_rows())
    for name, level in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
        rows.append((f"({name} of all)", None, measured[x].quantile(level), measured[y].quantile(level)))
    return DataTable(("token", "verdict", *names), rows)
