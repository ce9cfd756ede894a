"""Figures of explanations: the numbers are the tables', and nothing is shown as nothing."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from stickytoken.explanation.files import explanation_folders, read_explanation
from stickytoken.reports.figures.explanation import explanation_figures


@pytest.fixture(scope="module")
def stored(explained_run):
    """An explained token of a tiny BERT."""
    return read_explanation(explanation_folders(explained_run / "explain")[0])


def figures(stored, **tables):
    """The figures of a token by name, some of its tables changed."""
    found = replace(stored, tables=stored.tables | tables)
    return {figure.name.rpartition("-")[2]: figure for figure in explanation_figures(found)}


def outside(measures, *layers):
    """Measures that are outside the benign interval in these layers and nowhere else."""
    return measures.with_columns(outside=pl.col("layer").is_in(layers).fill_null(value=False))


def test_layers_are_drawn_in_order_with_the_benign_interval(stored):
    measures = outside(stored.tables["measures"], 2)
    figure = figures(stored, measures=measures.sample(fraction=1, shuffle=True, seed=0))["drift"]
    table = measures.filter(measure="carrier_cosine_drift").sort("layer")
    band, mean, token = figure.plot.data[:3]
    assert list(token.x) == list(mean.x) == table["layer"].to_list()
    assert list(token.y) == table["value"].to_list()
    assert list(token.marker.symbol) == ["diamond" if each == 2 else "circle-open" for each in table["layer"]]
    assert list(band.y) == [*table["benign_high"], *reversed(table["benign_low"].to_list())]
    value, benign = table.filter(layer=2)["value"][0], table.filter(layer=2)["benign_mean"][0]
    assert (
        f"leaves the benign interval in layer 2 and is furthest from it in layer 2, at {value:.3f}"
        in figure.alt
    )
    assert f"benign tokens have {benign:.3f}" in figure.alt
    within = figures(stored, measures=outside(measures))["drift"]
    assert within.alt.count("stays within") == 2
    assert len(figure.table.rows) == 2 * len(table)


def test_one_text_has_no_error_bars(stored):
    measures = stored.tables["measures"].with_columns(low=pl.lit(None, pl.Float64))
    token = figures(stored, measures=measures)["drift"].plot.data[2]
    assert token.error_y.array is None


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
    assert f"outside the benign interval in 1 of {len(single)} heads" in figure.alt
    assert f"layer 2, head 1: {single.filter(layer=2, head=1)['value'].item():.3f}" in figure.alt
    # A model whose layers have holes is drawn, too.
    assert figures(stored, heads=heads.filter(pl.col("head") != 1))["heads"].plot.to_json()


def test_intervals_are_bars_and_values_marks(stored):
    bar, mean, token = figures(stored)["pooling"].plot.data
    rows = {row["measure"]: row for row in stored.tables["measures"].to_dicts()}
    shown = [rows[name] for name in ("pooling_share", "pooling_norm_share")]
    np.testing.assert_allclose(np.add(bar.base, bar.x)[:2], [row["benign_high"] for row in shown])
    assert list(token.x)[:2] == [row["value"] for row in shown]
    assert list(mean.x)[:2] == [row["benign_mean"] for row in shown]
    assert list(token.marker.symbol)[:2] == ["diamond" if row["outside"] else "circle-open" for row in shown]


def test_the_matrix_has_every_cell_where_it_belongs_and_its_sums(stored):
    cells = stored.tables["attribution"].filter(pair=0)
    figure = figures(stored, attribution=cells.sample(fraction=1, shuffle=True, seed=0))["attribution"]
    (drawn,) = figure.plot.data
    last, right = cells["row"].max(), cells["column"].max()
    for row in cells.to_dicts():
        assert drawn.z[row["row"]][row["column"]] == pytest.approx(row["value"], abs=1e-6)
    between = cells.filter(pl.col("row") < last, pl.col("column") < right)
    assert drawn.zmax == pytest.approx(between["value"].abs().max())
    sums = cells.group_by("row").agg(pl.col("value").sum()).sort("row")["value"]
    np.testing.assert_allclose([row[-1] for row in drawn.z], sums, atol=1e-5)
    assert [row[3] for row in figure.table.rows[: last + 1]] == pytest.approx(sums.to_list())
    assert abs(figure.table.rows[last + 1][3]) == pytest.approx(drawn.zmax)
    parts = cells.filter(column=0).sort("row")["row_part"].to_list()
    edges = [
        place + 0.5 for place in range(last) if (parts[place] == "copies") != (parts[place + 1] == "copies")
    ]
    assert [shape.y0 for shape in figure.plot.layout.shapes if shape.xref == "x domain"] == edges
    pair = stored.tables["pairs"].filter(pair=0).row(0, named=True)
    assert f"is {pair['similarity_before']:.3f} without copies and {pair['similarity']:.3f}" in figure.alt


def test_the_place_of_a_row_is_its_share_of_the_vocabulary(stored):
    figure = figures(stored)["embedding"]
    (row,) = stored.tables["measures"].filter(measure="embedding_norm").to_dicts()
    assert figure.plot.data[1].x[0] == pytest.approx(100 * row["share_below"])
    assert f"length {row['value']:.3f}, above {row['share_below']:.1%} of the vocabulary" in figure.alt
    near = stored.tables["neighbours"].sort("rank").row(0, named=True)
    assert f"Nearest rows by cosine: {near['neighbour']} ({near['cosine']:.2f})" in figure.alt


def test_nothing_is_shown_as_nothing(stored):
    empty = {name: table.clear() for name, table in stored.tables.items()}
    for name, figure in figures(stored, **empty).items():
        said = "No similarity was attributed" if name == "attribution" else "This model does not expose"
        assert figure.alt.startswith(said)
        assert not figure.plot.data
        assert figure.plot.layout.annotations[0].text
        assert not figure.table.rows
