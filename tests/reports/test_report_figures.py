"""Figures as pure functions: they lose no token, invent no number, and say when there is nothing."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.comparisons import ComparedToken, WorstToken
from stickytoken.methods.entry import Column, Distribution, Scatter
from stickytoken.reports.comparison import tokens_by_run, worst_by_run
from stickytoken.reports.figures import CONTROL, SERIES, STICKY, TOPICAL, stacked, template
from stickytoken.reports.figures.run import (
    bins,
    breakdowns,
    composition,
    distribution,
    scatter,
    symptom_curves,
)

FINITE = st.floats(-1, 1, allow_nan=False)
LIFT, CONTRACTION = Column("lift", "lift"), Column("contraction", "contraction")
LIFTS = Distribution("lifts", "Lifts", LIFT, {"ordinary": 0.0}, "")
CLOUD = Scatter("cloud", "Cloud", LIFT, CONTRACTION, "")


def tokens(size, sticky=0, seed=0):
    generator = np.random.default_rng(seed)
    verdicts = ["sticky"] * sticky + ["benign"] * (size - sticky)
    return pl.DataFrame(
        {
            "token_id": range(size),
            "token": [f"t{k}" for k in range(size)],
            "lift": generator.normal(0, 0.02, size),
            "contraction": generator.normal(0.3, 0.1, size),
            "verdict": verdicts,
            "entry": ["whole word"] * size,
            "script": ["Latin"] * size,
            "length": generator.integers(1, 20, size),
            "position": np.linspace(0, 1, size) if size else [],
        },
        schema_overrides={
            "token": pl.String, "verdict": pl.String, "entry": pl.String, "script": pl.String,
            "length": pl.Int64, "position": pl.Float64, "lift": pl.Float64, "contraction": pl.Float64,
        },
    )  # fmt: skip


def drawn(figure):
    return figure.plot.to_plotly_json()["data"]


# Distribution


@given(st.lists(FINITE, min_size=1, max_size=300))
def test_bins_hold_every_value_once(values):
    counts, edges = bins(np.array(values))
    assert counts.sum() == len(values)
    assert len(counts) == len(edges) - 1 <= 120
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= min(values)
    assert max(values) <= edges[-1]


def test_a_distribution_draws_all_tokens_and_marks_the_flagged():
    table = tokens(5000, sticky=7)
    figure = distribution(table, LIFTS)
    bars, marks = drawn(figure)
    assert sum(count or 0 for count in bars["y"]) == 5000
    assert sorted(marks["x"]) == pytest.approx(sorted(table["lift"][:7]), abs=1e-6)
    rows = figure.table.rows
    assert sum(row[2] for row in rows) == 5000
    assert sum(row[3] for row in rows) == 7
    assert f"median {table['lift'].median():.4f}" in figure.alt
    assert "7 sticky between" in figure.alt


# Scatter


def test_a_scatter_says_how_many_it_draws():
    table = tokens(9000, sticky=3)
    figure = scatter(table, CLOUD)
    others, sticky = drawn(figure)
    assert (len(others["x"]), len(sticky["x"])) == (2500, 3)
    assert len(set(others["customdata"])) == 2500
    assert set(others["customdata"]) <= {f"\u2068t{k}\u2069" for k in range(3, 9000)}
    assert drawn(scatter(table, CLOUD))[0]["x"] == others["x"]
    assert len(drawn(scatter(table.head(60), CLOUD))[0]["x"]) == 57
    assert "2,500 of 8,997 drawn" in others["name"]
    worst_first = table.head(3).sort("lift", descending=True)["token"].to_list()
    assert [row[0] for row in figure.table.rows[:3]] == worst_first
    assert "3 sticky: medians" in figure.alt


# Curves


COPIES = [0, 1, 32]
CURVES = [
    {"token": "!", "verdict": "sticky", "copies": COPIES, "below": [0.1, 0.2, 0.3], "above": [0.5, 0.4, 0.3]}
]
CONTROLS = [
    {"token": name, "verdict": None, "copies": COPIES, "below": [0.1, low, low], "above": []}
    for name, low in (("a", 0.1), ("b", 0.2))
]


def test_curves_show_both_sides_and_the_range_of_the_controls():
    figure = symptom_curves(CURVES, CONTROLS, 0.25)
    band, mean, below, above = drawn(figure)
    assert band["y"] == pytest.approx([0.1, 0.2, 0.2, 0.1, 0.1, 0.1])
    assert mean["y"] == pytest.approx([0.1, 0.15, 0.15])
    assert (below["y"], above["y"]) == ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])
    rows = figure.table.rows
    assert rows[0] == ("!", "below", 0.1, 0.2, 0.3)
    assert rows[-1][:2] == ("(mean of ordinary tokens)", "below")
    assert rows[-1][2:] == pytest.approx([0.1, 0.15, 0.15])
    assert "32 copies of ! move pairs below u from 0.100 to 0.300" in figure.alt


def test_panels_stand_below_each_other_without_touching():
    changes = stacked(symptom_curves(CURVES, CONTROLS, 0.25).plot, 2, 800)
    (low, high), (bottom, top) = changes["yaxis2.domain"], changes["yaxis.domain"]
    assert 0 == low < high < bottom < top == 1
    assert changes["xaxis.domain"] == changes["xaxis2.domain"] == [0, 1]


# What the sticky tokens are


def test_breakdowns_count_every_token_once():
    table = tokens(400, sticky=5)
    for _, _, examined, sticky in breakdowns(table):
        assert (sum(examined), sum(sticky)) == (400, 5)
    (_, kinds, *_), _, (_, _, lengths, _), (_, _, _, positions) = breakdowns(table)
    assert kinds == ["whole word"]
    assert lengths[-1] == (table["length"] >= 10).sum()
    assert positions[0] == 5
    figure = composition(table)
    assert figure.alt.startswith("5 of 400 tokens are sticky. By kind of entry, whole word: 5 of 400.")
    shares = [row for row in figure.table.rows if row[1] == "0–10"]
    assert shares == [("position, % of the vocabulary", "0–10", 40, 5, "12.50%")]


# Nothing to show


@pytest.mark.parametrize("table", [tokens(0), tokens(3), tokens(1, sticky=1)], ids=["none", "benign", "one"])
def test_every_figure_stands_on_what_little_there_is(table):
    for figure in (distribution(table, LIFTS), scatter(table, CLOUD)):
        assert figure.plot.to_json()
        assert figure.alt.endswith(".")
        assert "nan" not in figure.alt.lower()
    assert sum(row[2] for row in distribution(table, LIFTS).table.rows) == len(table)


def test_without_curves_or_runs_the_figures_say_so():
    empty = symptom_curves([], [], 0.1)
    assert "no symptom curves" in empty.plot.layout.annotations[0].text
    assert empty.alt == "There are no symptom curves."
    assert empty.table.rows == ()
    for figure in (tokens_by_run(compared()), worst_by_run(compared())):
        assert "no run has" in figure.plot.layout.annotations[0].text


# Comparison


def compared(tokens=(), names=("a",), runs=()):
    """What the figures of a comparison read of it."""
    return SimpleNamespace(tokens=tokens, names=list(names), runs=runs)


def test_a_compared_token_has_a_mark_for_every_run_that_measured_it():
    rows = [
        ComparedToken("x", [1.0, None], ["sticky", None]),
        ComparedToken("y", [0.5, 0.7], ["benign", "sticky"]),
    ]
    figure = tokens_by_run(compared(rows, ("a", "b")))
    first, second = drawn(figure)
    assert (first["x"], second["x"]) == ([1.0, 0.5], [0.7])
    assert [symbol.endswith("-open") for symbol in first["marker"]["symbol"]] == [False, True]
    assert figure.table.rows[0] == ["x", 1.0, "sticky", None, None]


def test_on_a_narrow_screen_long_tokens_are_cut_and_stay_text():
    texts = ["short", "x" * 18, "<b>" + "\x1b" + "y" * 30]
    changes = tokens_by_run(compared([ComparedToken(text, [1.0], ["sticky"]) for text in texts])).narrow
    unseen = ComparedToken("unseen", [None], [None])
    assert tokens_by_run(compared([unseen])).narrow == tokens_by_run(compared()).narrow
    shown = [text.strip("\u2068\u2069") for text in changes["yaxis.ticktext"]]
    assert shown == ["short", "x" * 18, r"&lt;b&gt;\x1b" + "y" * 10 + "…"]
    assert max(len(line) for line in changes["xaxis.title.text"].split("<br>")) < 45


def test_the_worst_token_of_a_run_has_its_interval_and_stands_beside_the_others():
    worst = WorstToken(7, "</b>x", "sticky", "severe", 0.9, 0.7, 1.2)
    unsure = WorstToken(8, "y", "benign", None, 0.2, None, None)
    scale = SimpleNamespace(serious=0.5)
    runs = [
        SimpleNamespace(name=name, worst=token, quantiles=quantiles, scale=scale)
        for name, token, quantiles in (("second", worst, (0.0, 0.3)), ("first", unsure, (-0.1, 0.2)))
    ]
    figure = worst_by_run(compared(runs=[*runs, SimpleNamespace(name="std", worst=worst, quantiles=None)]))
    assert "not drawn, without a scale that models share: std" in figure.alt
    bars, marks = drawn(figure)
    assert [name.strip("\u2068\u2069") for name in marks["y"]] == ["second", "first"]
    assert (bars["base"], bars["x"]) == ([0.0, -0.1], pytest.approx([0.3, 0.3]))
    assert (marks["error_x"]["array"], marks["error_x"]["arrayminus"]) == ([0.3, None], [0.2, None])
    assert marks["marker"]["symbol"] == ["diamond", "diamond-open"]
    assert "<" not in marks["text"][0]
    assert figure.table.rows[0] == ("second", "</b>x", "sticky", 0.9, 0.7, 1.2, 0.0, 0.3)


# Colours


def luminance(color):
    levels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.03928 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#161b22"])
def test_colours_stand_out_from_the_ground_of_both_themes(ground):
    """Web Content Accessibility Guidelines 2.2: 3 to 1 for graphics, 4.5 to 1 for text."""
    for color in (STICKY, TOPICAL, CONTROL, *SERIES):
        assert contrast(color, ground) >= 3, color
    assert CONTROL not in SERIES  # the colour of ordinary tokens is nobody else's
    theme = "light" if ground == "#ffffff" else "dark"
    assert contrast(template(theme)["layout"]["font"]["color"], ground) >= 4.5
