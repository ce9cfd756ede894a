"""The columns of the method profile in reports: all explained, and some of them empty."""

import json

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from report_pages import Page
from stickytoken import open_run
from stickytoken.detection.selection import reopen, token_evidence
from stickytoken.reports.content import columns, read_content
from stickytoken.reports.templating import commands, cosine, flowing, glossary, number, plain
from stickytoken.validation import markdown
from stickytoken.vocabulary import categorize


def test_everything_but_judging_works_without_the_effects(run, run_copy, planted_encoder):
    """The example that comes with the package has none: they are large."""
    (run_copy / "effects.parquet").unlink()
    bare = open_run(run_copy)
    assert bare.tokens.equals(run.tokens)
    pages = [Page(stickytoken.report(folder)).text for folder in (run_copy, run.path)]
    assert pages[0].replace(str(run_copy), "") == pages[1].replace(str(run.path), "")
    opened = reopen(bare, planted_encoder, categorize(planted_encoder.tokenizer))
    again = token_evidence(opened, [34], with_ordinary=False)
    assert len(again.tokens) == 1
    before = planted.files_of(run_copy)
    profiled.detect_profile(planted_encoder, run_copy)
    assert planted.files_of(run_copy) == before


def test_a_topical_token_names_the_kind_of_text_that_it_lifts_most(run_copy):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    topical = pl.col("token") == "!"
    shown = table.with_columns(
        verdict=pl.when(topical).then(pl.lit("topical")).otherwise(pl.lit("benign")),
        kind=pl.when(topical).then(pl.lit("<b>law")).otherwise(pl.lit(None, pl.String)),
        severity=pl.when(topical).then(pl.lit("severe")).otherwise(pl.lit(None, pl.String)),
        reason=pl.when(topical).then(pl.lit("outlier on <b>law")).otherwise(pl.lit(None, pl.String)),
    )
    shown.write_parquet(run_copy / "tokens.parquet")
    html = stickytoken.report(run_copy)
    assert "Flagged: <bdi>outlier on &lt;b&gt;law</bdi>" in html
    assert '<td data-label="reason">outlier on &lt;b&gt;law</td>' in html
    assert '<td data-label="entry">symbol</td>' in html
    listed = f"({markdown('topical')}): {markdown('outlier on <b>law')}"
    assert listed in stickytoken.report(run_copy, format="md")
    (row,) = json.loads(stickytoken.report(run_copy, format="json"))["flagged"]
    assert (row["kind"], row["entry"]) == ("<b>law", "symbol")


@pytest.mark.parametrize("name", ["universality", "kind", "lift_words", "fixed_point", "q_value"])
def test_a_column_that_no_flagged_token_fills_is_left_out(run_copy, name):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    table.with_columns(pl.lit(None, table.schema[name]).alias(name)).write_parquet(
        run_copy / "tokens.parquet"
    )
    html = stickytoken.report(run_copy)
    assert '<td data-label="lift"' in html
    assert not [
        column.title
        for column in open_run(run_copy).method.reported
        if column.key == name and f'data-label="{column.title}"' in html
    ]
    for other in ("md", "json"):
        stickytoken.report(run_copy, format=other)
    assert planted.command("show", run_copy).exit_code == 0


def test_a_number_that_only_some_tokens_have_is_a_dash_for_the_others(run_copy):
    table = pl.read_parquet(run_copy / "tokens.parquet")
    worst, second = table.sort("lift", descending=True)["token_id"][:2]
    flagged = pl.col("token_id").is_in([worst, second])
    table.with_columns(
        verdict=pl.when(flagged).then(pl.lit("sticky")).otherwise("verdict"),
        q_value=pl.when(token_id=worst).then(0.5),
    ).write_parquet(run_copy / "tokens.parquet")
    html = stickytoken.report(run_copy)
    assert html.count('<td data-label="q value" data-value="">–</td>') == 1
    assert html.count('<td data-label="q value" class="number" data-value="0.5">0.5000</td>') == 1


def test_the_glossary_explains_every_heading(run):
    """Headings that are plain words of English, and the ends of an interval, need no entry."""
    content = read_content(run.path)
    titles = {column.title for column in columns(content)}
    usual = {"token", "script", "id", "low", "high"}
    assert titles - usual <= set(glossary(content.method))
    assert len(columns(content)) == len(titles)


# How settings and texts are written.


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "–"),
        ({}, "–"),
        (None, "–"),
        ("", "(empty)"),
        ([8, 4], "8, 4"),
        ({"token_prepending": True, "layer": -1}, "token prepending: yes, layer: -1"),
        (-0.00158148, "−0.00158148"),
    ],
)
def test_a_setting_is_never_blank_and_has_words_for_a_name(value, shown):
    assert plain(value) == shown


def test_a_text_with_line_breaks_is_one_paragraph():
    assert flowing("Team,\n\nthe client \r\n has\tpulled") == "Team, the client has\tpulled"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("run `detect A` again", "run <code>detect A</code> again"),
        ("`a` and `<b>`", "<code>a</code> and <code>&lt;b&gt;</code>"),
        ("a name ` <b>", "a name ` &lt;b&gt;"),
        ("`\u202e`", r"<code>\u202e</code>"),
    ],
)
def test_commands_in_a_sentence_are_code_and_nothing_else_is(sentence, shown):
    assert commands(sentence) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0004, "0.000"), (-0.0004, "0.000"), (-0.0281, "−0.028"), (None, "–")]
)
def test_a_change_near_zero_is_a_number_without_a_sign(value, shown):
    assert cosine(value, 3) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.04, "< 0.1"), (-0.04, "0.0"), (0.0, "0.0"), (-0.06, "−0.1"), (1234.5, "1,234.5")]
)
def test_a_number_that_its_digits_do_not_show_is_less_than_they_do_or_zero(value, shown):
    assert number(value, 1) == shown
