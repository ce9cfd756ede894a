"""Figures of a run: distributions of its measures, and the composition of sticky tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.methods import Column, Distribution, Scatter
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import minus
from stickytoken.vocabulary import Category, Kind
from stickytoken.words import counted, number

# Minimum and maximum number of bins in a histogram. Fewer bins would hide the shape of the distribution, and
# more bins would be narrower than a pixel on a phone.
_FEWEST_BINS = 5
_MOST_BINS = 120
# Smallest range of values that is not due to rounding errors alone.
_NO_SPAN = 1e-9


def distribution(tokens: pl.DataFrame, described: Distribution) -> ReportFigure:
    """Draw the distribution of a measure over the tokens of a run, and mark the flagged tokens.

    Args:
        tokens: Rows of tokens.parquet.
        described: The measure, and the wording of the figure.
    """
    column = described.column
    measured = tokens.filter(pl.col(column.key).is_not_null())
    if measured.is_empty():
        message = f"no token has a {column.title}"
        return fig.figure_of_nothing(described.name, described.title, described.reading, message)
    return ReportFigure(
        described.name,
        described.title,
        _draw_distribution(measured, described),
        _describe_distribution(measured, column),
        described.reading,
        _make_distribution_table(measured, column),
    )


def _draw_distribution(measured: pl.DataFrame, described: Distribution) -> go.Figure:
    """Draw a histogram with a logarithmic count axis, and mark the flagged tokens in it."""
    column = described.column
    counts, edges = bins(measured[column.key].to_numpy())
    intervals = [
        [_format_precisely(column, start), _format_precisely(column, end)]
        for start, end in pairwise(edges.tolist())
    ]
    figure = fig.new_figure()
    bars: dict[str, Any] = {
        "type": "bar",
        "x": ((edges[:-1] + edges[1:]) / 2).round(6).tolist(),
        "y": [int(count) or None for count in counts],  # no bar for a count of 0, which has no logarithm
        "width": float(edges[1] - edges[0]) * 0.96,
        "marker": {"color": fig.ORDINARY, "line": {"width": 0}, "opacity": 0.65},
        "customdata": intervals,
        "hovertemplate": "%{y:,} tokens from %{customdata[0]} to %{customdata[1]}<extra></extra>",
        "name": "tokens",
    }
    figure.add_trace(bars)
    sticky = measured.filter(verdict="sticky").sort(column.key, descending=True)
    hover_value = f": %{{x:{fig.number_format(column)}}}"
    heights = [_COUNT_AT_MARKS] * len(sticky)  # all marks are at the bottom
    _mark_sticky(figure, sticky, sticky[column.key].round(6), heights, hover_value)
    for line_index, (text, value) in enumerate(described.lines.items()):
        figure.add_vline(x=value, line=fig.DOTTED_LINE)
        height = 1 - 0.08 * line_index  # each label is lower than the previous label, to avoid overlap
        figure.add_annotation(
            x=value, y=height, yref="paper", text=text, showarrow=False, xanchor="left", xshift=4
        )
    figure.update_xaxes(title_text=fig.axis_title(column), tickformat=fig.tick_format(column))
    figure.update_yaxes(title_text="tokens (log scale)", type="log", dtick=1, rangemode="tozero")
    # Ends of the axis as powers of ten, with room above the highest bar and below a count of 1.
    highest_count = max(int(counts.max()), 2)  # so that bars of a single token don't fill the plot
    top = float(np.log10(highest_count)) + 0.35
    bottom = -0.3
    figure.update_yaxes(range=[bottom, top], tickformat=",d")
    names = [
        _Name(fig.legend_label(token), value, float(np.log10(_COUNT_AT_MARKS)))
        for token, value in sticky.reverse().select("token", column.key).iter_rows()  # from left to right
    ]
    drawn_values = [float(edges[0]), float(edges[-1]), *described.lines.values()]
    _write_names(figure, names, width=max(drawn_values) - min(drawn_values), height=top - bottom)
    figure.update_layout(bargap=0, hovermode="closest")
    return figure


def _describe_distribution(measured: pl.DataFrame, column: Column) -> str:
    quantiles = np.quantile(measured[column.key].to_numpy(), (0.05, 0.5, 0.95))
    low, middle, high = [_format_precisely(column, value) for value in quantiles]
    text = (
        f"{column.title.capitalize()} of {counted(len(measured), 'token')}: median {middle}, 90% between "
        f"{low} and {high}."
    )
    sticky_values = sorted(measured.filter(verdict="sticky")[column.key])
    if sticky_values:
        lowest = _format_precisely(column, sticky_values[0])
        highest = _format_precisely(column, sticky_values[-1])
        span = f"at {lowest}" if len(sticky_values) == 1 else f"between {lowest} and {highest}"
        text += f" {len(sticky_values)} sticky {span}."
    return text


# Number of bins in a distribution table, before empty bins are left out.
_TABLE_BINS = 12


def _make_distribution_table(measured: pl.DataFrame, column: Column) -> DataTable:
    """Return the numbers of all tokens and of sticky tokens in each bin, without empty bins."""
    values = measured[column.key].to_numpy()
    if np.ptp(values) >= _NO_SPAN:
        edges = np.linspace(values.min(), values.max(), _TABLE_BINS + 1)
    else:
        _, edges = bins(values)  # all values are practically equal, so there is one bin
    sticky_values = measured.filter(verdict="sticky")[column.key].to_numpy()
    counts = np.histogram(values, edges)[0].tolist()
    sticky_counts = np.histogram(sticky_values, edges)[0].tolist()
    rows = []
    ends_of_bins = pairwise(edges.tolist())
    for (start, end), count, sticky_count in zip(ends_of_bins, counts, sticky_counts, strict=True):
        if count:
            texts = (_format_precisely(column, start), _format_precisely(column, end))
            rows.append((*texts, count, sticky_count))
    return DataTable(("from", "to", "tokens", "sticky"), rows)


def _format_precisely(column: Column, value: float) -> str:
    # One digit more than in the table of tokens, so that neighbouring bins differ.
    if column.digits is None or not column.unit:
        return minus(f"{value:.4f}")
    return number(value, column.digits + 1, column.unit)


def bins(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the counts (shape (b,)) and edges (b + 1) of b bins of equal width.

    The width follows Freedman and Diaconis (1981).
    """
    low = float(values.min())
    high = float(values.max())
    if high - low < _NO_SPAN:
        # Practically equal values get one narrow bin.
        return np.array([len(values)]), np.array([low - 0.5e-3, high + 0.5e-3])
    lower_quartile, upper_quartile = np.quantile(values, [0.25, 0.75])
    width = 2 * float(upper_quartile - lower_quartile) / len(values) ** (1 / 3)
    # The width is 0 if the middle half of the values is equal.
    bin_count = (high - low) / width if width > 0 else _MOST_BINS
    return np.histogram(values, bins=int(np.clip(np.ceil(bin_count), _FEWEST_BINS, _MOST_BINS)))


# Where token marks are on the count axis of a distribution: just above its bottom.
_COUNT_AT_MARKS = 0.72


def _mark_sticky(
    figure: go.Figure,
    sticky: pl.DataFrame,
    x: pl.Series,
    y: Iterable[float],
    hover_values: str,
) -> None:
    # Draws a mark for each token in ``sticky``, at the positions ``x`` and ``y``. ``hover_values`` is the
    # part of the hover text after the token's name, in Plotly's notation.
    if sticky.is_empty():
        return
    names = [fig.label(token) for token in sticky["token"]]
    marks: dict[str, Any] = {
        "type": "scatter",
        "x": x.to_list(),
        "y": list(y),
        "customdata": names,  # for the hover text
        "mode": "markers",
        "marker": {"color": fig.STICKY, "symbol": "diamond", "size": _MARK_SIZE},
        "hovertemplate": f"%{{customdata}}{hover_values}<extra>sticky</extra>",
        "cliponaxis": False,  # marks at the edge of the plot are drawn whole
        "name": f"sticky ({len(names)})",
    }
    figure.add_trace(marks)


# Maximum number of sticky tokens whose names are shown. More names would cover the figure.
_MOST_NAMED = 5
# Sizes of the plot and its text on a phone, in pixels. Names that do not overlap on a phone do not overlap on
# larger screens either.
_PLOT_WIDTH = 280
_PLOT_HEIGHT = 250
_CHARACTER_WIDTH = 9
_LINE_HEIGHT = 16
_MARK_SIZE = 11
# Distance from the middle of a mark up to its name, in pixels.
_NAME_DISTANCE = 15


@dataclass(frozen=True)
class _Name:
    """The name of a token, and the position of the token's mark."""

    text: str
    x: float
    y: float  # logarithm of the value if the vertical axis is logarithmic


@dataclass(frozen=True)
class _Box:
    """The rectangle that a name or a mark covers, in pixels, if the figure is as wide as a phone."""

    x: float  # distance of the middle from the left
    y: float  # distance of the middle from below
    width: float
    height: float

    def overlaps(self, other: _Box) -> bool:
        is_beside = abs(self.x - other.x) >= (self.width + other.width) / 2
        is_above_or_below = abs(self.y - other.y) >= (self.height + other.height) / 2
        return not is_beside and not is_above_or_below


def _write_names(figure: go.Figure, names: Sequence[_Name], width: float, height: float) -> None:
    """Write the name of each token above its mark. If there are more than `_MOST_NAMED` names, write no name.

    A name that would cover an earlier name or another mark is written higher, with a line to its own mark.
    ``width`` and ``height`` are the lengths of the axes, in their units.
    """
    if len(names) > _MOST_NAMED:
        return
    marks = []
    for name in names:
        x = _PLOT_WIDTH * name.x / (width or 1.0)  # an axis without extent has length 0
        y = _PLOT_HEIGHT * name.y / (height or 1.0)
        marks.append(_Box(x, y, _MARK_SIZE, _MARK_SIZE))
    name_boxes: list[_Box] = []  # the boxes of the names that are written already
    for name, mark in zip(names, marks, strict=True):
        occupied = [*name_boxes, *(other for other in marks if other is not mark)]
        name_width = _CHARACTER_WIDTH * len(name.text)
        distance = _NAME_DISTANCE
        box = _Box(mark.x, mark.y + distance, name_width, _LINE_HEIGHT)
        # Move the name up line by line, until there is room.
        while any(box.overlaps(other) for other in occupied):
            distance += _LINE_HEIGHT
            box = _Box(mark.x, mark.y + distance, name_width, _LINE_HEIGHT)
        name_boxes.append(box)
        is_moved = distance > _NAME_DISTANCE
        # A moved name is at the end of an arrow to its mark, drawn as a line; Plotly counts downwards.
        offset = {"ax": 0, "ay": -distance, "standoff": 7} if is_moved else {"yshift": distance}
        figure.add_annotation(
            x=name.x,
            y=name.y,
            text=name.text,
            showarrow=is_moved,
            arrowhead=0,  # a line without a head
            arrowwidth=1,
            arrowcolor=fig.ORDINARY,
            **offset,
        )


# Maximum number of unflagged tokens to draw: enough to show the shape of the cloud, and few enough that a
# phone can draw them.
_DRAWN_POINTS = 2500
# Second part of the seed for sampling the unflagged tokens. The first part is their number.
_SCATTER_KEY = 5


def scatter(tokens: pl.DataFrame, described: Scatter) -> ReportFigure:
    """Plot two measures of a run's tokens against each other, and mark the flagged tokens.

    Args:
        tokens: Rows of tokens.parquet.
        described: The two measures, and the wording of the figure.
    """
    measured = tokens.drop_nulls([described.x.key, described.y.key])
    if measured.is_empty():
        message = f"no token has a {described.x.title} and a {described.y.title}"
        return fig.figure_of_nothing(described.name, described.title, described.reading, message)
    return ReportFigure(
        described.name,
        described.title,
        _draw_scatter(measured, described),
        _describe_scatter(measured, described),
        described.reading,
        _make_scatter_table(measured, described),
    )


def _draw_scatter(measured: pl.DataFrame, described: Scatter) -> go.Figure:
    """Draw every sticky token as a mark, and a random sample of all other tokens as dots."""
    x = described.x.key
    y = described.y.key
    others = measured.filter(pl.col("verdict").ne_missing("sticky"))
    other_count = len(others)
    if other_count > _DRAWN_POINTS:
        # The seed doesn't change, so that reports of the same run are the same.
        generator = np.random.default_rng([other_count, _SCATTER_KEY])
        drawn_indices = generator.choice(other_count, size=_DRAWN_POINTS, replace=False)
        others = others[np.sort(drawn_indices)]
    hover_values = f"<br>%{{x:{fig.number_format(described.x)}}}, %{{y:{fig.number_format(described.y)}}}"
    figure = fig.new_figure(height=430)
    cloud: dict[str, Any] = {
        "type": "scatter",
        "x": others[x].round(4).to_list(),
        "y": others[y].round(4).to_list(),
        "customdata": [fig.label(token) for token in others["token"]],
        "mode": "markers",
        "marker": {"color": fig.ORDINARY, "size": 4, "opacity": 0.45},
        "hovertemplate": f"%{{customdata}}{hover_values}<extra></extra>",
        "name": f"other tokens ({len(others):,} of {other_count:,} drawn)",
    }
    figure.add_trace(cloud)
    sticky = measured.filter(verdict="sticky").sort(x)
    _mark_sticky(figure, sticky, sticky[x].round(4), sticky[y].round(4), hover_values)
    names = [_Name(fig.legend_label(row["token"]), row[x], row[y]) for row in sticky.iter_rows(named=True)]
    width = float(np.ptp(measured[x].to_numpy()))  # the axes reach from the smallest to the largest value
    height = float(np.ptp(measured[y].to_numpy()))
    _write_names(figure, names, width, height)
    figure.update_xaxes(title_text=fig.axis_title(described.x), tickformat=fig.tick_format(described.x))
    figure.update_yaxes(title_text=fig.axis_title(described.y), tickformat=fig.tick_format(described.y))
    figure.update_layout(hovermode="closest")
    return figure


def _describe_scatter(measured: pl.DataFrame, described: Scatter) -> str:
    text = (
        f"{described.x.title.capitalize()} against {described.y.title} of {counted(len(measured), 'token')}."
    )
    sticky = measured.filter(verdict="sticky")
    groups = {f"{len(sticky)} sticky": sticky, "All tokens": measured}
    for name, rows in groups.items():
        if not rows.is_empty():
            median_x, median_y = _format_quantiles(rows, described, 0.5)
            text += f" {name}: medians {median_x} and {median_y}."
    return text


def _format_quantiles(rows: pl.DataFrame, described: Scatter, level: float) -> list[str]:
    # Returns the quantile of each of the two measures as text; a level of 0.5 gives the medians.
    texts = []
    for column in (described.x, described.y):
        quantile = np.quantile(rows[column.key].to_numpy(), level)
        texts.append(_format_precisely(column, float(quantile)))
    return texts


# Maximum number of sticky tokens in the table of a scatter figure.
_LISTED_TOKENS = 20


def _make_scatter_table(measured: pl.DataFrame, described: Scatter) -> DataTable:
    sticky = measured.filter(verdict="sticky").sort(described.y.key, descending=True)
    rows: list[tuple[Any, ...]] = []
    for row in sticky.head(_LISTED_TOKENS).iter_rows(named=True):
        x = _format_precisely(described.x, row[described.x.key])
        y = _format_precisely(described.y, row[described.y.key])
        rows.append((row["token"], row["verdict"], x, y))
    for name, level in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
        rows.append((f"({name} of all)", None, *_format_quantiles(measured, described, level)))
    return DataTable(("token", "verdict", described.x.title, described.y.title), rows)


# Number of scripts that get their own bar. Less frequent scripts share one bar.
_MOST_SCRIPTS = 7
# Number of bars in a panel whose labels have room side by side. The labels of more bars are tilted.
_MOST_LEVEL_LABELS = 7
# Tokens with at least this many characters share one bar.
_LONGEST = 10
_DECILES = 10


_READ_COMPOSITION = (
    "Grey: all tokens that the run examined. Orange: the sticky tokens. Where the orange bar is higher, the "
    "group is over-represented among sticky tokens. Position is the rank of the token id: many tokenizers "
    "put special and unused entries first or last, and frequent words before rare ones."
)


@dataclass(frozen=True)
class Breakdown:
    """The numbers of examined and sticky tokens in each group of tokens, for example in each script.

    Attributes:
        title: The property that tokens are grouped by, such as ``script``.
        groups: Names of the groups.
        examined: Number of examined tokens in each group.
        sticky: Number of sticky tokens in each group.
    """

    title: str
    groups: list[str]
    examined: list[int]
    sticky: list[int]


def break_down(tokens: pl.DataFrame) -> list[Breakdown]:
    """Count all tokens and sticky tokens by kind of entry, script, length and position in the vocabulary.

    Args:
        tokens: The tokens of a run, as in `RunContent.tokens`.

    Returns:
        The breakdowns by kind of entry, script, length and position, in this order.
    """
    counts = tokens["script"].value_counts().sort("count", "script", descending=[True, False])
    all_scripts = counts["script"].to_list()
    scripts = all_scripts[:_MOST_SCRIPTS]  # the most frequent scripts
    # Names of the groups, such as "10+" and "0–10", and then the groups of each token.
    lengths = [str(length) for length in range(1, _LONGEST)] + [f"{_LONGEST}+"]
    deciles = [f"{10 * decile}–{10 * decile + 10}" for decile in range(_DECILES)]
    length = pl.col("length").clip(1, _LONGEST)
    # Positions are shares of the vocabulary. The last token, at 1.0, belongs to the last decile.
    decile = (pl.col("position") * _DECILES).floor().clip(0, _DECILES - 1).cast(pl.Int64)
    tokens_with_groups = tokens.select(
        "verdict",
        "entry",
        script=pl.when(pl.col("script").is_in(scripts)).then(pl.col("script")).otherwise(pl.lit("others")),
        length=pl.when(length == _LONGEST).then(pl.lit(lengths[-1])).otherwise(length.cast(pl.String)),
        position=decile.replace_strict(dict(enumerate(deciles)), default=None),
    )
    kinds = [kind.value for kind in Kind if (tokens["entry"] == kind.value).any()]
    if len(all_scripts) > _MOST_SCRIPTS:
        scripts = [*scripts, "others"]
    return [
        _break_down_by(tokens_with_groups, "entry", "kind of entry", kinds),
        _break_down_by(tokens_with_groups, "script", "script", scripts),
        _break_down_by(tokens_with_groups, "length", "length in characters", lengths),
        _break_down_by(tokens_with_groups, "position", "position, % of the vocabulary", deciles),
    ]


def _break_down_by(tokens: pl.DataFrame, column: str, title: str, groups: list[str]) -> Breakdown:
    # Tokens that are in none of ``groups`` are not counted.
    examined = _count_by_group(tokens, column)
    sticky = _count_by_group(tokens.filter(verdict="sticky"), column)
    return Breakdown(
        title,
        groups,
        [examined.get(group, 0) for group in groups],
        [sticky.get(group, 0) for group in groups],
    )


def _count_by_group(tokens: pl.DataFrame, column: str) -> dict[str, int]:
    return dict(tokens[column].drop_nulls().value_counts().iter_rows())


def composition(tokens: pl.DataFrame) -> ReportFigure:
    """Draw the shares of kinds, scripts, lengths and positions among sticky tokens and among all tokens."""
    breakdowns = break_down(tokens)
    # Each breakdown counts the same tokens.
    total = sum(breakdowns[0].examined)
    sticky = sum(breakdowns[0].sticky)
    verb = "is" if sticky == 1 else "are"
    sentences = [f"{sticky} of {total:,} tokens {verb} sticky."]
    rows: list[tuple[Any, ...]] = []
    for breakdown in breakdowns:
        counts = list(zip(breakdown.sticky, breakdown.examined, breakdown.groups, strict=True))
        most_sticky_first = sorted(counts, key=itemgetter(0), reverse=True)
        phrases = [
            f"{group}: {sticky_count} of {examined_count:,}"
            for sticky_count, examined_count, group in most_sticky_first[:3]
            if sticky_count
        ]
        sentences.append(f"By {breakdown.title}, {'; '.join(phrases)}.")
        for sticky_count, examined_count, group in counts:
            if examined_count:
                share = f"{sticky_count / examined_count:.2%}"
                rows.append((breakdown.title, group, examined_count, sticky_count, share))
    plot = _draw_breakdowns(breakdowns)
    return ReportFigure(
        "who-they-are",
        "What the sticky tokens are",
        plot,
        " ".join(sentences),
        _READ_COMPOSITION,
        DataTable(("property", "group", "tokens", "sticky", "share sticky"), rows),
        fig.stack_panels(plot, panels=len(breakdowns), height=1180),
    )


def flagged_categories(tokens: pl.DataFrame) -> ReportFigure:
    """Draw the shares of categories and entry kinds among sticky tokens and among all examined tokens.

    The figure is like one in Chen et al. (2025). `stickytoken report --figures` saves it, but the page does
    not show it.

    Args:
        tokens: The run's tokens, with the columns `verdict`, `category` and `entry`.
    """
    name = "flagged-categories"
    title = "Categories of flagged tokens"
    reading = (
        "Grey: all tokens that the run examined. Orange: the sticky tokens. OK_SPECIAL: a special token "
        "that can appear in text."
    )
    sticky = tokens.filter(verdict="sticky")
    if sticky.is_empty():
        return fig.figure_of_nothing(name, title, reading, "this run has no sticky token")
    # The categories that occur, in the order in which `Category` declares them.
    categories = [category.value for category in Category if (tokens["category"] == category.value).any()]
    kinds = [kind.value for kind in Kind if (tokens["entry"] == kind.value).any()]
    breakdowns = [
        _break_down_by(tokens, "category", "category", categories),
        _break_down_by(tokens, "entry", "kind of entry", kinds),
    ]
    rows: list[tuple[Any, ...]] = []
    for breakdown in breakdowns:
        rows += _make_share_rows(breakdown)
    plot = _draw_breakdowns(breakdowns)
    alt = f"{counted(len(sticky), 'sticky token')} of {len(tokens):,}. {_describe_shares(breakdowns)}"
    headings = ("property", "group", "tokens", "sticky", "share of the sticky tokens")
    narrow = fig.stack_panels(plot, panels=len(breakdowns), height=700)
    return ReportFigure(name, title, plot, alt, reading, DataTable(headings, rows), narrow)


def _make_share_rows(breakdown: Breakdown) -> list[tuple[Any, ...]]:
    # Returns, for each group, a row with the share of the sticky tokens that are in the group.
    total = sum(breakdown.sticky)  # not 0: the caller draws nothing if no token is sticky
    return [
        (breakdown.title, group, examined, sticky, f"{sticky / total:.1%}")
        for group, examined, sticky in zip(
            breakdown.groups, breakdown.examined, breakdown.sticky, strict=True
        )
    ]


def _describe_shares(breakdowns: Sequence[Breakdown]) -> str:
    sentences = []
    for breakdown in breakdowns:
        total = sum(breakdown.sticky)
        sticky_counts = zip(breakdown.groups, breakdown.sticky, strict=True)
        described = [f"{count / total:.0%} {group}" for group, count in sticky_counts if count]
        sentences.append(f"By {breakdown.title}: {', '.join(described)}.")
    return " ".join(sentences)


def _draw_breakdowns(breakdowns: list[Breakdown]) -> go.Figure:
    """Draw one panel per breakdown, in rows of two, with bars for all tokens and for sticky tokens."""
    panel_rows = (len(breakdowns) + 1) // 2
    plot = make_subplots(
        rows=panel_rows,
        cols=2,
        subplot_titles=[breakdown.title for breakdown in breakdowns],
        vertical_spacing=0.22,
        horizontal_spacing=0.1,
        figure=fig.new_figure(height=280 * panel_rows),
    )
    grey = {"color": fig.ORDINARY, "opacity": 0.65, "pattern": _make_pattern("")}
    # The hatching distinguishes the bars for readers who cannot see colours.
    hatched = {"color": fig.STICKY, "opacity": 1, "pattern": _make_pattern("/")}
    for panel, breakdown in enumerate(breakdowns):
        cell = {"row": panel // 2 + 1, "col": panel % 2 + 1}
        in_legend = panel == 0
        _draw_shares(plot, breakdown.groups, breakdown.examined, "all tokens examined", grey, in_legend, cell)
        _draw_shares(plot, breakdown.groups, breakdown.sticky, "sticky tokens", hatched, in_legend, cell)
        # With None, Plotly chooses the angle.
        angle = -45 if len(breakdown.groups) > _MOST_LEVEL_LABELS else None
        plot.update_xaxes(type="category", tickangle=angle, **cell)
    plot.update_yaxes(title_text="% of tokens", col=1)
    legend = {"y": -0.14, "yanchor": "top"}
    plot.update_layout(barmode="group", bargap=0.25, bargroupgap=0, legend=legend, hovermode="closest")
    return plot


def _make_pattern(shape: str) -> dict[str, Any]:
    # An empty shape is a plain bar.
    return {"shape": shape, "size": 5, "solidity": 0.25}


def _draw_shares(
    plot: go.Figure,
    groups: list[str],
    counts: list[int],
    name: str,
    marker: dict[str, Any],
    in_legend: bool,
    cell: dict[str, int],
) -> None:
    total = sum(counts)
    if total == 0:  # no token is sticky, and so no share is defined
        return
    bars: dict[str, Any] = {
        "type": "bar",
        "x": groups,
        "y": [round(100 * count / total, 2) for count in counts],
        "customdata": counts,
        "name": f"{name} ({total:,})" if in_legend else name,
        "legendgroup": name,
        "showlegend": in_legend,
        "marker": marker,
        "hovertemplate": f"%{{x}}: %{{y:.1f}} % (%{{customdata:,}})<extra>{name}</extra>",
    }
    plot.add_trace(bars, **cell)
