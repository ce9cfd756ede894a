"""Sticky tokens by kind, script, length and position, compared with all examined tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import ORDINARY, STICKY, empty_figure, new_figure
from stickytoken.vocabulary.kinds import Kind

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
    """Count tokens by kind of entry, script, length and position.

    Args:
        tokens: with entry, script, length, position (0 to 1) and verdict.
    """
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


def draw(parts: Sequence[Breakdown]) -> go.Figure:
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


def describe(parts: Sequence[Breakdown]) -> str:
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


def table(parts: Sequence[Breakdown]) -> DataTable:
    """Return a table with one row per group: tokens, sticky tokens and their share."""
    rows = [
        (part.name, group, tokens, sticky, f"{sticky / tokens:.2%}" if tokens else None)
        for part in parts
        for group, tokens, sticky in zip(part.groups, part.tokens, part.sticky, strict=True)
        if tokens
    ]
    return DataTable(("property", "group", "tokens", "sticky", "share sticky"), rows)
