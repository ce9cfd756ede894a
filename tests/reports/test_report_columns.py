"""The columns of the method profile in reports: all explained, and some of them empty."""

import json

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from report_pages import Page
from stickytoken import open_run
from stickytoken.detection.detect import reopen, token_evidence
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
    assert '<td data-label="id" class="number"' in html
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


# How settings, numbers and texts are written.


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (plain([]), "–"),
        (plain({}), "–"),
        (plain(None), "–"),
        (plain(""), "(empty)"),
        (plain([8, 4]), "8, 4"),
        (plain({"token_prepending": True, "layer": -1}), "token prepending: yes, layer: -1"),
        (plain(-0.00158148), "−0.00158148"),
        (flowing("Team,\n\nthe client \r\n has\tpulled"), "Team, the client has\tpulled"),
        (commands("run `detect A` again"), "run <code>detect A</code> again"),
        (commands("`a` and `<b>`"), "<code>a</code> and <code>&lt;b&gt;</code>"),
        (commands("a name ` <b>"), "a name ` &lt;b&gt;"),
        (commands("`\u202e`"), r"<code>\u202e</code>"),
        # A change near zero has no sign.
        (cosine(0.0004, 3), "0.000"),
        (cosine(-0.0004, 3), "0.000"),
        (cosine(-0.0281, 3), "−0.028"),
        (cosine(None, 3), "–"),
        # What the digits do not show is less than they do, or zero.
        (number(0.04, 1), "< 0.1"),
        (number(-0.04, 1), "0.0"),
        (number(0.0, 1), "0.0"),
        (number(-0.06, 1), "−0.1"),
        (number(1234.5, 1), "1,234.5"),
    ],
)
def test_settings_numbers_and_texts_are_written_for_people(written, shown):
    assert written == shown
