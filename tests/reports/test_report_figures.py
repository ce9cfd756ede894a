"""Figures as pure functions: they lose no token, invent no number, and say when there is nothing."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from naming import says
from stickytoken.explanation.files import explanation_folders, read_explanation
from stickytoken.methods import Column, Distribution, Scatter
from stickytoken.reports.content import read_content
from stickytoken.reports.figures import AFTER, CONTROL, SERIES, STICKY, new_panels, stack_panels, template
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.figures.run import (
    bins,
    break_down,
    composition,
    distribution,
    flagged_categories,
    scatter,
)

FINITE = st.floats(-1, 1, allow_nan=False)
LIFT = Column("lift", "lift")
CONTRACTION = Column("contraction", "contraction")
LIFTS = Distribution("lifts", "Lifts", LIFT, {"ordinary": 0.0}, "")
CLOUD = Scatter("cloud", "Cloud", LIFT, CONTRACTION, "")


def tokens(size, sticky=0, seed=0):
    generator = np.random.default_rng(seed)
    columns = {
        "token_id": range(size),
        "token": [f"t{k}" for k in range(size)],
        "lift": generator.normal(0, 0.02, size),
        "contraction": generator.normal(0.3, 0.1, size),
        "verdict": ["sticky"] * sticky + ["benign"] * (size - sticky),
        "entry": ["whole word"] * size,
        "script": [("Latin", "Greek", "Arabic", "Arabic")[k % 4] for k in range(size)],
        "length": generator.integers(1, 20, size),
        "position": np.linspace(0, 1, size),
    }
    texts = dict.fromkeys(("token", "verdict", "entry", "script"), pl.String)
    return pl.DataFrame(columns, schema_overrides=texts)


def drawn(figure):
    return figure.plot.to_plotly_json()["data"]


@given(st.lists(FINITE, min_size=1, max_size=300))
def test_bins_hold_every_value_once(values):
    counts, edges = bins(np.array(values))
    assert counts.sum() == len(values)
    assert len(counts) == len(edges) - 1 <= 120
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= min(values) <= max(values) <= edges[-1]


def test_a_distribution_draws_all_tokens_and_marks_the_flagged():
    table = tokens(5000, sticky=6)
    figure = distribution(table, LIFTS)
    bars, marks = drawn(figure)
    assert (sum(count or 0 for count in bars["y"]), marks["mode"]) == (5000, "markers")
    assert sorted(marks["x"]) == pytest.approx(sorted(table["lift"][:6]), abs=1e-6)
    rows = figure.table.rows
    assert (sum(row[2] for row in rows), sum(row[3] for row in rows)) == (5000, 6)
    assert f"median {table['lift'].median():.4f}".replace("-", "\N{MINUS SIGN}") in figure.alt
    assert says(figure.alt, "6 sticky")


def test_a_scatter_says_how_many_it_draws():
    table = tokens(9000, sticky=5)
    figure = scatter(table, CLOUD)
    others, sticky = drawn(figure)
    assert (len(others["x"]), len(sticky["x"])) == (2500, 5)
    assert len(set(others["customdata"])) == 2500
    assert set(others["customdata"]) <= {f"\u2068t{k}\u2069" for k in range(5, 9000)}
    assert drawn(scatter(table, CLOUD))[0]["x"] == others["x"]
    assert len(drawn(scatter(table.head(60), CLOUD))[0]["x"]) == 55
    assert says(others["name"], "2,500 of 8,995")
    worst_first = table.head(5).sort("contraction", descending=True)["token"].to_list()
    assert [row[0] for row in figure.table.rows[:5]] == worst_first
    assert says(figure.alt, "5 sticky")


def name_annotations(figure):
    return {
        annotation.text.strip("\u2068\u2069"): annotation
        for annotation in figure.plot.layout.annotations
        if annotation.text.startswith("\u2068")
    }


@pytest.mark.parametrize(
    "draw", [lambda table: distribution(table, LIFTS), lambda table: scatter(table, CLOUD)]
)
def test_up_to_five_sticky_tokens_have_their_names_in_a_figure(draw):
    assert set(name_annotations(draw(tokens(100, sticky=5)))) == {"t0", "t1", "t2", "t3", "t4"}
    assert name_annotations(draw(tokens(100, sticky=6))) == {}


def test_names_of_tokens_with_nearly_the_same_value_are_written_above_each_other():
    close = [0.500, 0.502, 0.504]
    table = tokens(100, sticky=3).with_columns(
        lift=pl.Series([*close, *np.linspace(-0.5, 0.4, 97)]),
        token=pl.Series(["doorway", "stew", "t2"] + ["x"] * 97),
    )
    names = name_annotations(distribution(table, LIFTS))
    heights = [names["doorway"].yshift, -names["stew"].ay, -names["t2"].ay]
    assert (np.diff(heights) >= 16).all()
    assert [names[name].showarrow for name in ("doorway", "stew", "t2")] == [False, True, True]


def test_a_name_covers_no_mark_of_another_token():
    table = tokens(100, sticky=2).with_columns(
        lift=pl.Series([0.5, 0.51, *np.linspace(-0.5, 0.4, 98)]),
        contraction=pl.Series([0.0, 0.12, *np.linspace(-1, 1, 98)]),
        token=pl.Series(["stew", "doorway"] + ["x"] * 98),
    )
    names = name_annotations(scatter(table, CLOUD))
    assert names["stew"].showarrow
    assert -names["stew"].ay > 15 + 13  # above the mark of doorway, which lies 15 pixels higher on a phone


def test_panels_stand_below_each_other_without_touching():
    changes = stack_panels(new_panels(("a", "b"), height=400, spacing=0.04), panels=2, height=800)
    low, high, bottom, top = (*changes["yaxis2.domain"], *changes["yaxis.domain"])
    assert 0 == low < high < bottom < top == 1
    assert changes["xaxis.domain"] == changes["xaxis2.domain"] == [0, 1]


def test_breakdowns_count_every_token_once():
    table = tokens(400, sticky=5)
    kinds, scripts, lengths, positions = break_down(table)
    for panel in (kinds, scripts, lengths, positions):
        assert sum(panel.examined) == 400
        assert sum(panel.sticky) == 5
    assert kinds.groups == ["whole word"]
    assert scripts.groups == ["Arabic", "Greek", "Latin"]
    assert lengths.examined[-1] == (table["length"] >= 10).sum()
    assert positions.sticky[0] == 5
    figure = composition(table)
    assert says(figure.alt, "5 of 400 tokens", "whole word: 5 of 400")
    shares = [row for row in figure.table.rows if row[1] == "0–10"]
    assert shares == [("position, % of the vocabulary", "0–10", 40, 5, "12.50%")]


def test_shares_of_categories_are_those_of_the_table(run):
    content = read_content(run.path)
    figure = flagged_categories(content.tokens)
    rows = {(row[0], row[1]): row for row in figure.table.rows}
    for kind, count in content.sticky["entry"].value_counts().iter_rows():
        assert rows["kind of entry", kind][3] == count
    assert sum(row[3] for row in figure.table.rows) == 2 * len(content.sticky)
    none_sticky = content.tokens.with_columns(verdict=pl.lit("benign"))
    assert "no sticky token" in flagged_categories(none_sticky).alt


@pytest.mark.parametrize("table", [tokens(0), tokens(3), tokens(1, sticky=1)], ids=["none", "benign", "one"])
def test_every_figure_stands_on_what_little_there_is(table):
    for figure in (distribution(table, LIFTS), scatter(table, CLOUD)):
        assert figure.plot.to_json()
        assert figure.alt.endswith(".")
        assert "nan" not in figure.alt.lower()
    assert sum(row[2] for row in distribution(table, LIFTS).table.rows) == len(table)


def contrast(one, other):
    def luminance(color):
        levels = [level / 255 for level in bytes.fromhex(color.removeprefix("#"))]
        linear = [
            channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4
            for channel in levels
        ]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#161b22"])
def test_colours_stand_out_from_the_ground_of_both_themes(ground):
    """Web Content Accessibility Guidelines 2.2: 3 to 1 for graphics, 4.5 to 1 for text."""
    for color in (STICKY, AFTER, CONTROL, *SERIES):
        assert contrast(color, ground) >= 3, color
    assert CONTROL not in SERIES  # the colour of ordinary tokens is nobody else's
    theme = "light" if ground == "#ffffff" else "dark"
    assert contrast(template(theme)["layout"]["font"]["color"], ground) >= 4.5


@pytest.fixture(scope="module")
def stored(explained_run):
    return read_explanation(explanation_folders(explained_run / "explain")[0])


def figures(stored, **tables):
    changed = replace(stored, tables=stored.tables | tables)
    return {figure.name.rpartition("-")[2]: figure for figure in explanation_figures(changed)}


def outside(measures, *layers):
    return measures.with_columns(outside=pl.col("layer").is_in(layers).fill_null(value=False))


def test_layers_are_drawn_in_order_with_the_benign_interval(stored):
    measures = outside(stored.tables["measures"], 2)
    figure = figures(stored, measures=measures.sample(fraction=1, shuffle=True, seed=0))["drift"]
    table = measures.filter(measure="carrier_cosine_drift").sort("layer")
    band, mean, token = figure.plot.data[:3]
    assert list(token.x) == list(mean.x) == table["layer"].to_list()
    assert list(token.y) == table["value"].to_list()
    assert list(token.marker.symbol) == [
        "diamond" if layer == 2 else "circle-open" for layer in table["layer"]
    ]
    assert list(band.y) == [*table["benign_high"], *reversed(table["benign_low"].to_list())]
    value = table.filter(layer=2)["value"][0]
    benign = table.filter(layer=2)["benign_mean"][0]
    assert says(figure.alt, "leaves the benign interval in layer 2", f"layer 2, at {value:.3f}")
    assert says(figure.alt, "benign", f"{benign:.3f}")
    assert len(figure.table.rows) == 2 * len(table)
    assert token.error_y.array == pytest.approx(table["high"] - table["value"], abs=1e-5)
    assert token.error_y.arrayminus == pytest.approx(table["value"] - table["low"], abs=1e-5)
    no_end = pl.lit(None, pl.Float64)
    alone = outside(measures).with_columns(low=no_end, high=no_end)  # as of one text
    within = figures(stored, measures=alone)["drift"]
    assert within.alt.count("stays within") == 2
    assert set(within.plot.data[2].error_y.array) == {None}


def test_heads_are_in_their_places(stored):
    heads = stored.tables["heads"].with_columns(
        outside=((pl.col("layer") == 2) & (pl.col("head") == 1)).fill_null(value=False)
    )
    figure = figures(stored, heads=heads.sample(fraction=1, shuffle=True, seed=0))["heads"]
    (cells,) = figure.plot.data
    single = heads.drop_nulls("head")
    for layer, row, marks in zip(cells.y, cells.z, cells.text, strict=True):
        for head, value in enumerate(row):
            assert value == pytest.approx(single.filter(layer=layer, head=head)["deviations"].item())
            assert marks[head] == ("●" if (layer, head) == (2, 1) else "")
    assert says(figure.alt, f"1 of {len(single)} heads")
    assert f"layer 2, head 1: {single.filter(layer=2, head=1)['value'].item():.3f}" in figure.alt
    # A model whose layers have holes is drawn, too.
    assert figures(stored, heads=heads.filter(pl.col("head") != 1))["heads"].plot.to_json()


def test_intervals_are_bars_and_values_marks(stored):
    bar, mean, token = figures(stored)["pooling"].plot.data
    rows = {row["measure"]: row for row in stored.tables["measures"].to_dicts()}
    rows_shown = [rows[name] for name in ("pooling_share", "pooling_norm_share")]
    np.testing.assert_allclose(np.add(bar.base, bar.x)[:2], [row["benign_high"] for row in rows_shown])
    assert list(token.x)[:2] == [row["value"] for row in rows_shown]
    assert list(mean.x)[:2] == [row["benign_mean"] for row in rows_shown]
    assert list(token.marker.symbol)[:2] == [
        "diamond" if row["outside"] else "circle-open" for row in rows_shown
    ]


def test_the_matrix_has_every_cell_where_it_belongs_and_its_sums(stored):
    cells = stored.tables["attribution"].filter(pair=0)
    figure = figures(stored, attribution=cells.sample(fraction=1, shuffle=True, seed=0))["attribution"]
    (trace,) = figure.plot.data
    last = cells["row"].max()
    for row in cells.to_dicts():
        assert trace.z[row["row"]][row["column"]] == pytest.approx(row["value"], abs=1e-6)
    assert trace.zmax == pytest.approx(cells["value"].abs().max())
    sums = cells.group_by("row").agg(pl.col("value").sum()).sort("row")["value"]
    np.testing.assert_allclose([row[-1] for row in trace.z], sums, atol=1e-5)
    assert [row[3] for row in figure.table.rows[: last + 1]] == pytest.approx(sums.to_list())
    assert abs(figure.table.rows[last + 1][3]) == pytest.approx(trace.zmax)
    token_parts = cells.filter(column=0).sort("row")["row_part"].to_list()
    edges = [
        column + 0.5
        for column in range(last)
        if (token_parts[column] == "copies") != (token_parts[column + 1] == "copies")
    ]
    assert [shape.y0 for shape in figure.plot.layout.shapes if shape.xref == "x domain"] == edges
    pair = stored.tables["pairs"].filter(pair=0).row(0, named=True)
    assert says(figure.alt, f"{pair['similarity_before']:.3f}", f"{pair['similarity']:.3f}")


def test_the_place_of_a_row_is_its_share_of_the_vocabulary(stored):
    figure = figures(stored)["embedding"]
    (row,) = stored.tables["measures"].filter(measure="embedding_norm").to_dicts()
    assert figure.plot.data[1].x[0] == pytest.approx(100 * row["share_below"])
    assert says(figure.alt, f"{row['value']:.3f}", f"{row['share_below']:.1%}")
    near = stored.tables["neighbours"].sort("rank").row(0, named=True)
    assert says(figure.alt, f"{near['neighbour']} ({near['cosine']:.2f})")


def test_nothing_is_shown_as_nothing(stored):
    empty = {name: table.clear() for name, table in stored.tables.items()}
    for name, figure in figures(stored, **empty).items():
        reason = "No similarity was attributed" if name == "attribution" else "This model does not expose"
        assert figure.alt.startswith(reason)
        assert not figure.plot.data
        assert figure.plot.layout.annotations[0].text
        assert not figure.table.rows
