"""Figures of explanations as pure functions: the numbers are the tables', and nothing is shown as nothing."""

import numpy as np
import polars as pl
import pytest

from stickytoken.explanation.files import ATTRIBUTION_SCHEMA, HEADS_SCHEMA, MEASURES_SCHEMA, NEIGHBOURS_SCHEMA
from stickytoken.reports.figures.explanation import attribution, beside_benign, by_head, by_layer, embedding

PANELS = {"carrier_cosine_drift": "drift", "copies_cosine_distance": "distance"}
NAMES = {"pooling_share": "share", "pooling_norm_share": "share of lengths"}


def numbers(value, benign, *, outside, **more):
    return {
        "value": value,
        "low": value - 0.01,
        "high": value + 0.01,
        "benign_mean": benign,
        "benign_low": benign - 0.1,
        "benign_high": benign + 0.1,
        "deviations": (value - benign) / 0.05,
        "outside": outside,
        **more,
    }


def measures(rows):
    return pl.DataFrame([{"token_id": 7, "token": "x"} | row for row in rows], schema=MEASURES_SCHEMA)


def layered(outside=(2, 3)):
    return measures(
        [
            numbers(
                0.5 + 0.1 * layer if layer in outside else 0.2,
                0.2,
                outside=layer in outside,
                measure=name,
                layer=layer,
                area="hidden states",
            )
            for name in PANELS
            for layer in (3, 1, 0, 2)
        ]
    )


def traces(figure):
    return [trace.to_plotly_json() for trace in figure.plot.data]


def layers(table, token="x"):
    return by_layer("layers", "Layers", table, PANELS, token, "")


def test_layers_are_drawn_in_order_with_the_benign_interval():
    band, mean, token, *other = traces(layers(layered(), "<x>"))
    assert len(other) == 3
    assert list(token["x"]) == list(mean["x"]) == [0, 1, 2, 3]
    assert list(token["y"]) == pytest.approx([0.2, 0.2, 0.7, 0.8])
    assert list(token["marker"]["symbol"]) == ["circle-open"] * 2 + ["diamond"] * 2
    assert list(band["y"]) == pytest.approx([0.3] * 4 + [0.1] * 4)
    assert "&lt;x&gt;" in token["name"]
    assert len(layers(layered()).narrow) > 5


def test_layers_in_words_name_where_it_begins_and_where_it_is_furthest():
    words = layers(layered()).alt
    assert "leaves the benign interval in layer 2 and is furthest from it in layer 3, at 0.800" in words
    assert "stays within" in layers(layered(())).alt
    assert len(layers(layered()).table.rows) == 8


def test_one_text_has_no_error_bars():
    table = layered().with_columns(low=None, high=None)
    assert "error_y" not in traces(layers(table.cast(MEASURES_SCHEMA)))[2]


def heads():
    rows = [
        numbers(0.1 * layer + 0.01 * head, 0.1, outside=(layer, head) == (2, 1), layer=layer, head=head)
        | {"wasserstein": 0.1 * layer + 0.01 * head, "wasserstein_benign": 0.01, "kl": 1.0, "kl_benign": 0.2}
        for layer in (2, 1)
        for head in (2, 0, 1)
    ]
    whole = [row | {"head": None} for row in rows if row["head"] == 0]
    return pl.DataFrame([{"token_id": 7, "token": "x"} | row for row in [*rows, *whole]], schema=HEADS_SCHEMA)


def test_heads_are_in_their_places():
    figure = by_head("heads", heads())
    (cells,) = traces(figure)
    table = heads().drop_nulls("head")
    for layer, row in zip(cells["y"], cells["z"], strict=True):
        for head, value in zip(cells["x"], row, strict=True):
            expected = table.filter(layer=layer, head=head)["deviations"].item()
            assert value == pytest.approx(expected)
    assert [list(row) for row in cells["text"]] == [["", "", ""], ["", "●", ""]]
    assert "outside the benign interval in 1 of 6 heads" in figure.alt
    assert "layer 2, head 1: 0.210" in figure.alt
    rows = figure.table.rows
    assert [row[:2] for row in rows[:3]] == [(1, "mean"), (2, "mean"), (2, 2)]


def test_a_model_whose_layers_have_holes_is_drawn():
    assert by_head("heads", heads().filter(pl.col("head") != 1)).plot.to_json()


def test_intervals_are_bars_and_values_marks():
    table = measures(
        [
            numbers(0.5, 0.2, outside=True, measure="pooling_share", area="pooling"),
            numbers(0.21, 0.2, outside=False, measure="pooling_norm_share", area="pooling"),
        ]
    )
    figure = beside_benign("pooling", table, NAMES, "x", "mean")
    bar, mean, token = traces(figure)
    np.testing.assert_allclose(np.add(bar["base"], bar["x"]), table["benign_high"])
    assert list(token["x"]) == table["value"].to_list()
    assert list(mean["x"]) == table["benign_mean"].to_list()
    assert list(token["marker"]["symbol"]) == ["diamond", "circle-open"]
    assert "share 0.500, outside the benign interval of 0.100 to 0.300" in figure.alt
    assert len(figure.table.rows) == 2


def cells(copies=2, width=3):
    random = np.random.default_rng(0)
    parts = ["carrier", "carrier", *["copies"] * copies, "reference"]
    rows = [
        {
            "token_id": 7,
            "pair": 0,
            "row": row,
            "row_token": f"r{row}",
            "row_part": part,
            "column": column,
            "column_token": f"c{column}",
            "value": random.normal(),
        }
        for row, part in enumerate(parts)
        for column in range(width)
    ]
    return pl.DataFrame(rows, schema=ATTRIBUTION_SCHEMA).sample(fraction=1, shuffle=True, seed=0)


PAIR = {
    "pair": 0,
    "carrier": "a <b>",
    "anchor": "c",
    "similarity_before": 0.1,
    "similarity": 0.3,
    "completeness_error": -0.001,
    **dict.fromkeys(("from_copies", "from_carrier", "from_reference"), 0.1),
}


def test_the_matrix_has_every_cell_where_it_belongs():
    table = cells()
    figure = attribution("matrix", table, PAIR)
    (drawn,) = traces(figure)
    for row in table.to_dicts():
        assert drawn["z"][row["row"]][row["column"]] == pytest.approx(row["value"], abs=1e-6)
    between = table.filter(pl.col("row") < 4, pl.col("column") < 2)["value"]
    assert drawn["zmax"] == pytest.approx(between.abs().max())
    layout = figure.plot.layout
    assert [text.strip("\u2068\u2069") for text in layout.yaxis.ticktext] == ["r0", "r1", "r2", "r3", "r4"]
    assert [shape.y0 for shape in layout.shapes if shape.xref == "x domain"] == [1.5, 3.5]
    for row in range(5):
        assert drawn["z"][row][-1] == pytest.approx(table.filter(row=row)["value"].sum(), abs=1e-5)


def test_sums_of_the_matrix_are_said():
    table = cells()
    sums = {part: table.filter(row_part=part)["value"].sum() for part in ("copies", "carrier", "reference")}
    figure = attribution("matrix", table, PAIR | {f"from_{part}": value for part, value in sums.items()})
    words = figure.alt
    assert "is 0.100 without copies and 0.300 with them" in words
    assert f"rows of the copies contribute {sums['copies']:.3f}" in words
    rows = figure.table.rows
    assert [row[1] for row in rows[:5]] == ["carrier", "carrier", "copies", "copies", "reference"]
    assert sum(row[3] for row in rows[:5]) == pytest.approx(table["value"].sum())
    assert abs(rows[5][3]) >= abs(rows[6][3])


def test_the_place_of_a_row_is_its_share_of_the_vocabulary():
    table = measures(
        [numbers(1.5, 1.4, outside=False, measure="embedding_norm", area="embedding", share_below=0.875)]
    )
    near = pl.DataFrame(
        [{"token_id": 7, "rank": 1, "neighbour_id": 9, "neighbour": "y", "cosine": 0.5}],
        schema=NEIGHBOURS_SCHEMA,
    )
    names = {"embedding_norm": "length", "embedding_cosine_to_mean": "cosine"}
    figure = embedding("embedding", table, names, "x", near)
    _, token = traces(figure)
    assert list(token["x"]) == [87.5]
    assert figure.alt == "x: length 1.500, above 87.5% of the vocabulary. Nearest rows by cosine: y (0.50)."
    assert len(figure.table.rows) == 1


def test_nothing_is_shown_as_nothing():
    none = measures([])
    near = pl.DataFrame(schema=NEIGHBOURS_SCHEMA)
    unexposed = (
        layers(none),
        by_head("heads", heads().clear()),
        beside_benign("pooling", none, NAMES, "x", "mean"),
        embedding("embedding", none, NAMES, "x", near),
    )
    matrix = attribution("matrix", cells().clear(), None)
    assert matrix.alt == "No similarity was attributed."
    assert all(figure.alt.startswith("This model does not expose") for figure in unexposed)
    for figure in (*unexposed, matrix):
        assert not figure.plot.data
        assert figure.plot.layout.annotations[0].text
        assert not figure.table.rows
