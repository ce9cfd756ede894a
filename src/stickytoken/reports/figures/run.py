"""Figures of a run: how its tokens are distributed, which of them stick, and what their copies do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.detection.run_folder import is_flagged
from stickytoken.methods import Distribution, Scatter
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import minus
from stickytoken.vocabulary import Kind

_FEWEST_BINS, _MOST_BINS = 5, 120
_NO_SPAN = 1e-9


def distribution(tokens: pl.DataFrame, described: Distribution) -> ReportFigure:
    key, name = described.column.key, described.column.title
    about = (described.name, described.title)
    measured = tokens.filter(pl.col(key).is_not_null())
    if measured.is_empty():
        return fig.figure_of_nothing(*about, described.reading, f"no token has a {name}")
    values = measured[key].to_numpy()
    counts, edges = bins(values)
    figure = fig.new_figure()
    figure.add_bar(
        x=((edges[:-1] + edges[1:]) / 2).round(6).tolist(),
        y=[int(count) or None for count in counts],
        width=float(edges[1] - edges[0]) * 0.96,
        marker={"color": fig.ORDINARY, "line": {"width": 0}, "opacity": 0.65},
        customdata=np.column_stack([edges[:-1], edges[1:]]).round(5).tolist(),
        hovertemplate="%{y:,} tokens from %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
        name="tokens",
    )
    for verdict in ("topical", "sticky"):
        flagged = measured.filter(verdict=verdict).sort(key, descending=True)
        _mark(figure, flagged, verdict, flagged[key].round(6), [0.72] * len(flagged), ": %{x:.4f}")
    for place, (text, value) in enumerate(described.lines.items()):
        figure.add_vline(x=value, line=fig.DOTTED_LINE)
        figure.add_annotation(
            x=value, y=1 - 0.08 * place, yref="paper", text=text, showarrow=False, xanchor="left", xshift=4
        )
    figure.update_xaxes(title_text=name)
    figure.update_yaxes(title_text="tokens (log scale)", type="log", dtick=1, rangemode="tozero")
    top = float(np.log10(max(int(counts.max()), 2))) + 0.35
    figure.update_yaxes(range=[-0.3, top], tickformat=",d")
    figure.update_layout(bargap=0, hovermode="closest")

    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    said = (
        f"Histogram of the {name} of {len(measured):,} tokens: median {middle:.4f}, 90% of them between "
        f"{low:.4f} and {high:.4f}."
    )
    for verdict in ("sticky", "topical"):
        if span := sorted(measured.filter(verdict=verdict)[key]):
            where = f"at {span[0]:.4f}" if len(span) == 1 else f"between {span[0]:.4f} and {span[-1]:.4f}"
            said += f" {len(span)} {verdict} {where}."
    if np.ptp(values) >= _NO_SPAN:
        edges = np.linspace(values.min(), values.max(), 13)
    sticky = measured.filter(verdict="sticky")[key].to_numpy()
    counts, marked = np.histogram(values, edges)[0], np.histogram(sticky, edges)[0]
    rows = [
        (float(start), float(end), int(count), int(mark))
        for start, end, count, mark in zip(edges[:-1], edges[1:], counts, marked, strict=True)
        if count
    ]
    table = DataTable(("from", "to", "tokens", "of them sticky"), rows)
    return ReportFigure(*about, figure, said, described.reading, table)


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
    x, y = described.x.key, described.y.key
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
    figure = fig.new_figure(height=430)
    figure.add_scatter(
        x=others[x].round(4).to_list(),
        y=others[y].round(4).to_list(),
        customdata=[fig.label(token) for token in others["token"]],
        mode="markers",
        marker={"color": fig.ORDINARY, "size": 4, "opacity": 0.45},
        hovertemplate="%{customdata}<br>%{x:.4f}, %{y:.4f}<extra></extra>",
        name=f"other tokens ({len(others):,} of {in_all:,} drawn)",
    )
    for verdict in ("topical", "sticky"):
        rows = measured.filter(verdict=verdict)
        _mark(figure, rows, verdict, rows[x].round(4), rows[y].round(4), "<br>%{x:.4f}, %{y:.4f}")
    figure.update_xaxes(title_text=names[0])
    figure.update_yaxes(title_text=names[1])
    figure.update_layout(hovermode="closest")

    said = f"{names[0].capitalize()} against {names[1]} of {len(measured):,} tokens."
    sticky = measured.filter(verdict="sticky")
    for who, rows in ((f"{len(sticky)} sticky", sticky), ("All tokens", measured)):
        if len(rows):
            medians = [float(rows[column].median()) for column in (x, y)]  # type: ignore[arg-type]
            said += f" {who}: medians {medians[0]:.4f} and {medians[1]:.4f}."
    flagged = measured.filter(is_flagged()).sort(x, descending=True)
    listed = list(flagged.select("token", "verdict", x, y).head(20).iter_rows())
    for name, level in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
        listed.append((f"({name} of all)", None, measured[x].quantile(level), measured[y].quantile(level)))
    table = DataTable(("token", "verdict", *names), listed)
    return ReportFigure(*about, figure, said, described.reading, table)


_DRAWN_CURVES = 6
# Of pairs below and above the mean similarity.
_SIDES = ("below", "above")
Curve = dict[str, Any]
"""A token, its verdict, the numbers of copies from 0 on, and the mean similarities of pairs by side."""


def symptom_curves(curves: list[Curve], controls: list[Curve], u: float) -> ReportFigure:
    ordinary = {side: lines for side in _SIDES if (lines := [each[side] for each in controls if each[side]])}
    said = "There are no symptom curves."
    if curves:
        said = f"Mean similarity of pairs by number of copies; the mean similarity u is {u:.3f}."
        for curve in curves[:_DRAWN_CURVES]:
            parts = [
                f"{side} u from {values[0]:.3f} to {values[-1]:.3f}"
                for side in _SIDES
                if (values := curve[side])
            ]
            said += f" {curve['copies'][-1]} copies of {curve['token']} move pairs {' and '.join(parts)}."
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
                y=[round(value, 5) for value in curve[side]],
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


_GRADES = {"severe": fig.STICKY, "serious": fig.SERIES[4], "mild": fig.TOPICAL, "negligible": fig.ORDINARY}
_DIMENSION_COLUMNS = {
    "layer": "layer",
    "dimension": "dimension",
    "sticky": "sticky",
    "topical": "topical",
    **{grade: grade for grade in _GRADES},
    "largest_sd": "largest lift (SD)",
    "ordinary_sd": "spread of ordinary lifts (SD)",
    "similarity_spread": "spread of similarities (1 SD)",
    "mean_similarity": "mean similarity u",
}


def by_dimension(rows: Sequence[Mapping[str, Any]]) -> ReportFigure:
    names = [
        f"{row['dimension']}" if row["layer"] is None else f"layer {row['layer']}, {row['dimension']}"
        for row in rows
    ]
    titles = ("flagged tokens", "largest lift (SD)", "spread of similarities")
    figure = fig.new_panels(titles, 360, 0.09)
    for grade, color in _GRADES.items():
        figure.add_bar(
            x=names,
            y=[row[grade] for row in rows],
            name=grade,
            marker={"color": color},
            hovertemplate=f"%{{x}}<br>{grade}: %{{y}}<extra></extra>",
            row=1,
            col=1,
        )
    for column, key, color in ((2, "largest_sd", fig.STICKY), (3, "similarity_spread", fig.CONTROL)):
        figure.add_scatter(
            x=names,
            y=[row[key] for row in rows],
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": 8},
            showlegend=False,
            hovertemplate="%{x}: %{y:.4f}<extra></extra>",
            row=1,
            col=column,
        )
    figure.update_layout(barmode="stack", legend={"y": -0.25, "yanchor": "top"})
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    parts = [
        f"{name}: {row['sticky']} sticky, {row['topical']} topical"
        + ("" if row["largest_sd"] is None else f", largest lift {row['largest_sd']:.2f} SD")
        for name, row in zip(names, rows, strict=True)
    ]
    return ReportFigure(
        "by-dimension",
        "By dimension and layer",
        figure,
        minus(f"By dimension: {'; '.join(parts)}."),
        "What the tokens do if only the first components of the vectors are used, or the vectors after "
        "an earlier layer; the model as it is comes first. Left, flagged tokens by severity. The spread "
        "of the similarities (right) is what one SD is worth: where it grows, one lift matters less.",
        DataTable.of(_DIMENSION_COLUMNS, rows),
        fig.stacked(figure, 3, 980),
        in_markdown=True,
    )


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
