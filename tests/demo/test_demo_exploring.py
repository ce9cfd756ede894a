"""The table of a run in the web app, and the evidence of its tokens."""

from dataclasses import replace

import polars as pl
import pytest
from numpy.testing import assert_allclose

from stickytoken import load_encoder
from stickytoken.demo import _explore as exploring
from stickytoken.demo._explore import NOT_JUDGED, computed_evidence, filtered, kept_evidence
from stickytoken.demo.context import SharedModel
from stickytoken.errors import InputError
from stickytoken.reports.content import read_content


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
    without = replace(
        content, evidence=content.evidence._replace(tokens=kept.filter(pl.col("token_id") != token_id))
    )
    for bare in (without, replace(content, evidence=None)):
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
