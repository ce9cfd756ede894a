"""Figures of a run: how its tokens are distributed, which of them stick, and what their copies do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.detection.run_folder import is_flagged
from stickytoken.methods import Column, Distribution, Scatter, wording
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import minus
from stickytoken.vocabulary import Kind

_FEWEST_BINS, _MOST_BINS = 5, 120
_NO_SPAN = 1e-9


def distribution(tokens: pl.DataFrame, described: Distribution) -> ReportFigure:
    """Draw how a measure is distributed over the tokens, with the flagged ones marked."""
    column = described.column
    key = column.key
    about = (described.name, described.title)
    measured = tokens.filter(pl.col(key).is_not_null())
    if measured.is_empty():
        return fig.figure_of_nothing(*about, described.reading, f"no token has a {column.title}")
    values = measured[key].to_numpy()
    counts, edges = bins(values)
    figure = fig.new_figure()
    figure.add_bar(
        x=((edges[:-1] + edges[1:]) / 2).round(6).tolist(),
        y=[int(count) or None for count in counts],
        width=float(edges[1] - edges[0]) * 0.96,
        marker={"color": fig.ORDINARY, "line": {"width": 0}, "opacity": 0.65},
        customdata=[[_exact(column, start), _exact(column, end)] for start, end in pairwise(edges.tolist())],
        hovertemplate="%{y:,} tokens from %{customdata[0]} to %{customdata[1]}<extra></extra>",
        name="tokens",
    )
    for verdict in ("topical", "sticky"):
        flagged = measured.filter(verdict=verdict).sort(key, descending=True)
        where = f": %{{x:{fig.number_format(column)}}}"
        _mark(figure, flagged, verdict, flagged[key].round(6), [0.72] * len(flagged), where)
    for place, (text, value) in enumerate(described.lines.items()):
        figure.add_vline(x=value, line=fig.DOTTED_LINE)
        figure.add_annotation(
            x=value, y=1 - 0.08 * place, yref="paper", text=text, showarrow=False, xanchor="left", xshift=4
        )
    figure.update_xaxes(title_text=fig.axis_title(column), tickformat=fig.tick_format(column))
    figure.update_yaxes(title_text="tokens (log scale)", type="log", dtick=1, rangemode="tozero")
    top = float(np.log10(max(int(counts.max()), 2))) + 0.35
    figure.update_yaxes(range=[-0.3, top], tickformat=",d")
    figure.update_layout(bargap=0, hovermode="closest")
    return ReportFigure(
        *about,
        figure,
        _distribution_in_words(measured, column),
        described.reading,
        _distribution_table(measured, column),
    )


def _distribution_in_words(measured: pl.DataFrame, column: Column) -> str:
    """Describe a distribution by its quantiles and the range of its flagged tokens."""
    low, middle, high = np.quantile(measured[column.key].to_numpy(), (0.05, 0.5, 0.95))
    said = (
        f"{column.title.capitalize()} of {wording.counted(len(measured), 'token')}: median "
        f"{_exact(column, middle)}, 90% between {_exact(column, low)} and {_exact(column, high)}."
    )
    for verdict in ("sticky", "topical"):
        flagged = sorted(measured.filter(verdict=verdict)[column.key])
        if not flagged:
            continue
        where = f"at {_exact(column, flagged[0])}"
        if len(flagged) > 1:
            where = f"between {_exact(column, flagged[0])} and {_exact(column, flagged[-1])}"
        said += f" {len(flagged)} {verdict} {where}."
    return said


def _distribution_table(measured: pl.DataFrame, column: Column) -> DataTable:
    """Count all tokens and the sticky ones in a dozen equal intervals."""
    values = measured[column.key].to_numpy()
    edges = bins(values)[1]
    if np.ptp(values) >= _NO_SPAN:
        edges = np.linspace(values.min(), values.max(), 13)
    sticky = measured.filter(verdict="sticky")[column.key].to_numpy()
    counts = np.histogram(values, edges)[0].tolist()
    sticky_counts = np.histogram(sticky, edges)[0].tolist()
    rows = [
        (_exact(column, start), _exact(column, end), count, sticky_count)
        for (start, end), count, sticky_count in zip(
            pairwise(edges.tolist()), counts, sticky_counts, strict=True
        )
        if count
    ]
    return DataTable(("from", "to", "tokens", "of them sticky"), rows)


def _exact(column: Column, value: float) -> str:
    """Write a value of a column with one digit more than in tables; four digits if it has no unit."""
    if column.digits is None or not column.unit:
        return minus(f"{value:.4f}")
    return column._replace(digits=column.digits + 1).text(value)


def bins(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    low, high = float(values.min()), float(values.max())
    if high - low < _NO_SPAN:
        return np.array([len(values)]), np.array([low - 0.5e-3, high + 0.5e-3])
    width = 2 * float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / len(values) ** (1 / 3)
    wanted = (high - low) / width if width > 0 else _MOST_BINS
    return np.histogram(values, bins=int(np.clip(np.ceil(wanted), _FEWEST_BINS, _MOST_BINS)))


def _mark(
    figure: go.Figure, flagged: pl.DataFrame, verdict: str, x: pl.Series, y: Iterable[float], where: str
) -> None:
    if flagged.is_empty():
        return
    names = [fig.label(token) for token in flagged["token"]]
    named = verdict == "sticky" and len(names) <= 5
    figure.add_scatter(
        x=x.to_list(),
        y=list(y),
        customdata=names,
        text=names if named else None,
        textposition="top center",
        mode="markers+text" if named else "markers",
        marker={"color": fig.COLORS[verdict], "symbol": fig.SYMBOLS[verdict], "size": 11},
        hovertemplate=f"%{{customdata}}{where}<extra>{verdict}</extra>",
        cliponaxis=False,
        name=f"{verdict} ({len(names)})",
    )


# Of the other tokens: enough to see the cloud, few enough for a phone.
_DRAWN_POINTS = 2500


def scatter(tokens: pl.DataFrame, described: Scatter) -> ReportFigure:
    """Draw two measures of the tokens against each other, with the flagged ones marked."""
    x = described.x.key
    y = described.y.key
    names = (described.x.title, described.y.title)
    about = (described.name, described.title)
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return fig.figure_of_nothing(*about, described.reading, f"no token has a {names[0]} and a {names[1]}")
    others = measured.filter(~is_flagged())
    in_all = len(others)
    if in_all > _DRAWN_POINTS:
        generator = np.random.default_rng([in_all, 5])
        others = others[np.sort(generator.choice(in_all, size=_DRAWN_POINTS, replace=False))]
    where = f"%{{x:{fig.number_format(described.x)}}}, %{{y:{fig.number_format(described.y)}}}"
    figure = fig.new_figure(height=430)
    figure.add_scatter(
        x=others[x].round(4).to_list(),
        y=others[y].round(4).to_list(),
        customdata=[fig.label(token) for token in others["token"]],
        mode="markers",
        marker={"color": fig.ORDINARY, "size": 4, "opacity": 0.45},
        hovertemplate=f"%{{customdata}}<br>{where}<extra></extra>",
        name=f"other tokens ({len(others):,} of {in_all:,} drawn)",
    )
    for verdict in ("topical", "sticky"):
        rows = measured.filter(verdict=verdict)
        _mark(figure, rows, verdict, rows[x].round(4), rows[y].round(4), f"<br>{where}")
    figure.update_xaxes(title_text=fig.axis_title(described.x), tickformat=fig.tick_format(described.x))
    figure.update_yaxes(title_text=fig.axis_title(described.y), tickformat=fig.tick_format(described.y))
    figure.update_layout(hovermode="closest")
    return ReportFigure(
        *about,
        figure,
        _scatter_in_words(measured, described),
        described.reading,
        _scatter_table(measured, described),
    )


def _scatter_in_words(measured: pl.DataFrame, described: Scatter) -> str:
    """Describe a cloud of tokens by the medians of the sticky ones and of all."""
    said = (
        f"{described.x.title.capitalize()} against {described.y.title} of "
        f"{wording.counted(len(measured), 'token')}."
    )
    sticky = measured.filter(verdict="sticky")
    for who, rows in ((f"{len(sticky)} sticky", sticky), ("All tokens", measured)):
        if rows.is_empty():
            continue
        medians = [
            _exact(column, float(np.median(rows[column.key].to_numpy())))
            for column in (described.x, described.y)
        ]
        said += f" {who}: medians {medians[0]} and {medians[1]}."
    return said


def _scatter_table(measured: pl.DataFrame, described: Scatter) -> DataTable:
    """List the flagged tokens and the quartiles of all."""
    x = described.x.key
    y = described.y.key
    flagged = measured.filter(is_flagged()).sort(y, descending=True).head(20)
    rows: list[tuple[Any, ...]] = [
        (row["token"], row["verdict"], _exact(described.x, row[x]), _exact(described.y, row[y]))
        for row in flagged.iter_rows(named=True)
    ]
    for name, level in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
        quantiles = [
            _exact(column, float(np.quantile(measured[column.key].to_numpy(), level)))
            for column in (described.x, described.y)
        ]
        rows.append((f"({name} of all)", None, *quantiles))
    return DataTable(("token", "verdict", described.x.title, described.y.title), rows)


_DRAWN_CURVES = 6
# Of pairs below and above the mean similarity.
_SIDES = ("below", "above")
Curve = dict[str, Any]
"""A token, its verdict, the numbers of copies from 0 on, and the mean similarities of pairs by side."""


def _is_drawn(curve: Curve, place: int) -> bool:
    """Say whether a curve has values for the number of copies at this place."""
    return all(curve[side][place] is not None for side in _SIDES if curve[side])


def symptom_curves(curves: list[Curve], controls: list[Curve], u: float) -> ReportFigure:
    ordinary = {side: lines for side in _SIDES if (lines := [each[side] for each in controls if each[side]])}
    said = "There are no symptom curves."
    if curves:
        said = f"Mean similarity of pairs by number of copies; the mean similarity u is {u:.3f}."
        for curve in curves[:_DRAWN_CURVES]:
            # Numbers of copies that the tokenizer reads as an unknown word are left out.
            drawn = [place for place in range(len(curve["copies"])) if _is_drawn(curve, place)]
            if not drawn:
                continue
            first, last = drawn[0], drawn[-1]
            parts = [
                f"{side} u from {curve[side][first]:.3f} to {curve[side][last]:.3f}"
                for side in _SIDES
                if curve[side]
            ]
            said += f" {curve['copies'][last]} copies of {curve['token']} move pairs {' and '.join(parts)}."
        ends = []
        for side, lines in ordinary.items():
            start, end = np.mean([line[0] for line in lines]), np.mean([line[-1] for line in lines])
            ends.append(f"{side} u from {start:.3f} to {end:.3f}")
        said += f" Ordinary tokens move them {' and '.join(ends)}." if ends else ""
    table = DataTable()
    if either := curves or controls:
        rows = [(each["token"], side, *each[side]) for each in curves for side in _SIDES if each[side]]
        rows += [
            ("(mean of ordinary tokens)", side, *np.mean(lines, axis=0).tolist())
            for side, lines in ordinary.items()
        ]
        copies = either[0]["copies"]
        table = DataTable(("token", "pairs", *(f"{n} copies" for n in copies)), rows)
        plot = _curves(curves[:_DRAWN_CURVES], ordinary, copies, u)
    else:
        plot = fig.empty_figure("this run has no symptom curves")
    return ReportFigure(
        "symptom-curves",
        "Symptom curves",
        plot,
        said,
        "Copies of a token are appended to a text. Unrelated pairs lie below the model's mean similarity "
        "u (dotted): a sticky token raises these more than ordinary tokens do (green, dashed; the band "
        "is their range). Related pairs lie above u: a few copies may raise these as well; many copies "
        "of any token lower them, because less and less of the text is left in the vector.",
        table,
        fig.stacked(plot, 2, 820) if curves else {},
    )


def _curves(
    curves: list[Curve], ordinary: Mapping[str, list[list[float]]], copies: list[int], u: float
) -> go.Figure:
    titles = ("unrelated pairs (below u)", "related pairs (above u)")
    figure = fig.new_panels(titles, 430, 0.04, same_scale=True)
    places = fig.spread_out(copies)
    for column, side in enumerate(_SIDES, start=1):
        if side in ordinary:
            values = np.array(ordinary[side])
            fig.draw_ordinary(
                figure,
                places,
                fig.band(values),
                column,
                customdata=copies,
                name=f"{len(values)} ordinary tokens: mean and range",
                legendgroup="controls",
                showlegend=column == 1,
                hovertemplate="ordinary tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
            )
        for place, curve in enumerate(curves):
            if not curve[side]:
                continue
            name = fig.label(curve["token"])
            verdict = "" if curve["verdict"] in (None, "sticky") else f" ({curve['verdict']})"
            figure.add_scatter(
                x=fig.spread_out(curve["copies"]),
                y=[None if value is None else round(value, 5) for value in curve[side]],
                customdata=curve["copies"],
                mode="lines+markers",
                line={"color": fig.SERIES[place], "width": 2.5, "dash": fig.DASHES[place]},
                marker={"size": 7},
                name=f"{name}{verdict}",
                legendgroup=str(place),
                showlegend=column == 1 or not curve["below"],
                hovertemplate=f"{name}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
                row=1,
                col=column,
            )
        figure.add_hline(y=u, line=fig.DOTTED_LINE, col=column)
    figure.update_xaxes(title_text="copies", **fig.copies_axis(copies), zeroline=False)
    figure.update_yaxes(title_text="mean cosine similarity", col=1)
    figure.add_annotation(x=0, y=u, xref="x domain", yref="y", text="u", showarrow=False, xshift=6, yshift=9)
    legend = {"y": -0.2, "yanchor": "top"}
    figure.update_layout(legend=legend, margin={"t": 34}, hovermode="closest", height=460)
    return figure


_MOST_SCRIPTS = 7
_LONGEST = 10
_DECILES = 10


def breakdowns(tokens: pl.DataFrame) -> list[tuple[str, list[str], list[int], list[int]]]:
    scripts = tokens["script"].value_counts().sort("count", "script", descending=[True, False])["script"]
    kept = scripts.head(_MOST_SCRIPTS).to_list()
    lengths = [str(length) for length in range(1, _LONGEST)] + [f"{_LONGEST}+"]
    tenths = [f"{10 * place}–{10 * place + 10}" for place in range(_DECILES)]
    length = pl.col("length").clip(1, _LONGEST)
    place = (pl.col("position") * _DECILES).floor().clip(0, _DECILES - 1).cast(pl.Int64)
    shown = tokens.select(
        "verdict",
        "entry",
        script=pl.when(pl.col("script").is_in(kept)).then(pl.col("script")).otherwise(pl.lit("others")),
        length=pl.when(length == _LONGEST).then(pl.lit(lengths[-1])).otherwise(length.cast(pl.String)),
        position=place.replace_strict(dict(enumerate(tenths)), default=None),
    )
    found = []
    for column, title, groups in (
        ("entry", "kind of entry", [kind.value for kind in Kind if (shown["entry"] == kind.value).any()]),
        ("script", "script of its letters", kept + ["others"] * (len(scripts) > _MOST_SCRIPTS)),
        ("length", "length in characters", lengths),
        ("position", "position, % of the vocabulary", tenths),
    ):
        every, sticky = (
            dict(rows[column].drop_nulls().value_counts().iter_rows())
            for rows in (shown, shown.filter(verdict="sticky"))
        )
        examined, marked = ([known.get(group, 0) for group in groups] for known in (every, sticky))
        found.append((title, groups, examined, marked))
    return found


def composition(tokens: pl.DataFrame) -> ReportFigure:
    parts = breakdowns(tokens)
    plot = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[name for name, *_ in parts],
        vertical_spacing=0.22,
        horizontal_spacing=0.1,
        figure=fig.new_figure(height=560),
    )
    total, sticky = (sum(counts) for counts in parts[0][2:])
    said = f"{sticky} of {total:,} tokens {'is' if sticky == 1 else 'are'} sticky."
    rows: list[tuple[Any, ...]] = []
    for place, (title, groups, examined, marked) in enumerate(parts):
        where = {"row": place // 2 + 1, "col": place % 2 + 1}
        for name, counts, look in (
            ("all tokens examined", examined, (fig.ORDINARY, 0.65, "")),
            ("sticky tokens", marked, (fig.STICKY, 1, "/")),
        ):
            color, opacity, shape = look
            if not (whole := sum(counts)):
                continue
            plot.add_bar(
                x=groups,
                y=[round(100 * count / whole, 2) for count in counts],
                customdata=counts,
                name=f"{name} ({whole:,})" if place == 0 else name,
                legendgroup=name,
                showlegend=place == 0,
                marker={
                    "color": color,
                    "opacity": opacity,
                    "pattern": {"shape": shape, "size": 5, "solidity": 0.25},
                },
                hovertemplate=f"%{{x}}: %{{y:.1f}} % (%{{customdata:,}})<extra>{name}</extra>",
                **where,
            )
        plot.update_xaxes(type="category", tickangle=-45 if len(groups) > _MOST_SCRIPTS else None, **where)
        counted = [each for each in zip(groups, examined, marked, strict=True) if each[1]]
        rows += [(title, *each, f"{each[2] / each[1]:.2%}") for each in counted]
        largest = sorted(counted, key=lambda each: -each[2])[:3]
        named = "; ".join(f"{group}: {count} of {of:,}" for group, of, count in largest if count)
        said += f" By {title}, {named}."
    plot.update_yaxes(title_text="% of them", col=1)
    legend = {"y": -0.14, "yanchor": "top"}
    plot.update_layout(barmode="group", bargap=0.25, bargroupgap=0, legend=legend, hovermode="closest")
    return ReportFigure(
        "who-they-are",
        "What the sticky tokens are",
        plot,
        said,
        "Grey: all tokens that the run examined. Orange: the sticky ones. Where the orange bar is higher, "
        "the group is over-represented among sticky tokens. Position is the rank of the token id: many "
        "tokenizers put special and unused entries first or last, and frequent words before rare ones.",
        DataTable(("property", "group", "tokens", "sticky", "share sticky"), rows),
        fig.stacked(plot, len(parts), 1180),
    )
