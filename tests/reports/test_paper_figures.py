"""The figures of the paper: their numbers are those of the run, and what a run lacks is named."""

import shutil

import numpy as np
import polars as pl
import pytest
from stickytoken.methods.symptoms import SIMILARITY_EDGES, similarity_counts
from stickytoken.reports.figures.paper import flagged_categories, mean_shift, pair_similarities

import stickytoken
from naming import says
from report_pages import Page
from stickytoken.reports.content import read_content
from stickytoken.reports.facts import paper_figures
from stickytoken.unit_vectors import unit_vectors


def figures_of(folder):
    return {figure.name: figure for figure in paper_figures(read_content(folder))}


def traces(figure):
    return figure.plot.to_plotly_json()["data"]


def test_pair_similarities_are_those_of_texts_encoded_anew(run, planted_encoder):
    record = run.evidence.record
    anchors = run.plan.texts.anchors
    anchor_vectors = unit_vectors(planted_encoder.encode(anchors))
    carrier_vectors = unit_vectors(planted_encoder.encode(record.carriers))
    expected = np.histogram(carrier_vectors @ anchor_vectors.T, SIMILARITY_EDGES)[0]
    assert list(record.similarities_before) == expected.tolist()
    before, after = traces(figures_of(run.path)["pair-similarities"])
    assert sum(before["y"]) == sum(after["y"]) == len(record.carriers) * record.anchors


def test_similarities_beyond_one_are_counted():
    counts = similarity_counts(np.array([-1.0000001, 0.0, 1.0000001]))
    assert sum(counts) == 3
    assert counts[0] == counts[-1] == 1


def test_pair_similarities_mark_u_and_say_the_means():
    before = similarity_counts(np.array([0.01, 0.03]))
    after = similarity_counts(np.array([0.41, 0.43]))
    figure = pair_similarities("<b>", 8, before, after, 0.25)
    assert [shape.x0 for shape in figure.plot.layout.shapes] == [0.25]
    assert says(figure.alt, "0.020", "0.420", "8 copies", "<b>")
    assert "&lt;b&gt;" in traces(figure)[1]["name"]


def test_mean_shift_averages_over_tokens_and_skips_unknown_words():
    copies = [0, 1, 2]
    first = {"copies": copies, "below": [0.1, 0.2, None], "above": []}
    second = {"copies": copies, "below": [0.2, 0.5, 0.8], "above": []}
    figure = mean_shift([first, second], [], "sticky tokens")
    (line,) = traces(figure)
    assert line["y"] == pytest.approx([0.0, 0.2, 0.6])
    assert says(figure.alt, "2 copies", "+0.600")


def test_shares_of_categories_are_those_of_the_table(run):
    figure = figures_of(run.path)["flagged-categories"]
    sticky = read_content(run.path).sticky
    rows = {(row[0], row[1]): row for row in figure.table.rows}
    for kind, count in sticky["entry"].value_counts().iter_rows():
        assert rows["kind of entry", kind][3] == count
    assert sum(row[3] for row in figure.table.rows) == 2 * len(sticky)


@pytest.mark.slow
def test_a_run_of_the_method_std_has_all_three(planted_run):
    figures = figures_of(planted_run)
    assert list(figures) == ["flagged-categories", "mean-shift", "pair-similarities"]
    assert all(figure.table.rows for figure in figures.values())


def test_what_a_run_lacks_is_named(run_copy):
    (run_copy / "evidence.json").unlink()
    figures = figures_of(run_copy)
    assert "symptom curves" in figures["mean-shift"].alt
    assert "similarities of pairs" in figures["pair-similarities"].alt
    none_sticky = read_content(run_copy).tokens.with_columns(verdict=pl.lit("benign"))
    assert "no sticky token" in flagged_categories(none_sticky).alt


def test_copies_that_are_read_as_unknown_are_not_drawn(run, tmp_path):
    folder = shutil.copytree(run.path, tmp_path / "run")
    evidence = pl.read_parquet(folder / "evidence.parquet")
    curves = {}
    for side in ("below", "above"):
        lines = evidence[side].to_list()
        for line in lines[:1]:
            line[-2:] = [None] * len(line[-2:])
        curves[side] = pl.Series(lines, dtype=pl.List(pl.Float64))
    evidence.with_columns(**curves).write_parquet(folder / "evidence.parquet")
    page = Page(stickytoken.report(folder))
    assert "unknown word" in page.text
    traces_by_name = {}
    for trace in page.data["figures"]["symptom-curves"]["data"]:
        traces_by_name.setdefault(trace.get("name"), []).append(trace["y"])
    for line in traces_by_name["\u2068!\u2069"]:
        assert line[-2:] == [None, None]
