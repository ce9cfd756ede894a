"""Token text is hostile: in every form of a report it is text and nothing else."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from markdown_it import MarkdownIt

import profiled
import stickytoken
from hostile import HOSTILE, assert_harmless
from report_pages import Page, opened, wait_for_plots
from stickytoken import load_encoder
from stickytoken.reports.content import read_content
from stickytoken.reports.figures.figure import label
from stickytoken.reports.sections import report_figures
from stickytoken.reports.templating import json_for_html
from stickytoken.validation import markdown, visible

ATTACKS = {
    text: visible(text)
    for text in (
        *HOSTILE,
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(2)</script>",
        "</title></style><svg onload=alert(3)>",
        '"><iframe src=//evil.example>',
        "' onmouseover='alert(4)",
        "{{ 7 * 7 }}{% raw %}",
        "%{x} %{customdata}<extra>e</extra>",
        '<a href="javascript:alert(5)">a</a>',
        "<b>b</b><br>&lt;&amp;",
        "$x^2$",
        "![i](http://evil.example/i.png)",
        "[a](javascript:alert(6))",
        "https://evil.example/p www.evil.example me@evil.example",
        "|pipe|`code`<!-- c -->",
        "שלום \u202e אב",
        "\u2028\u2029",
        "  spaces  ",
    )
}


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A run in which every text is hostile: tokens, model, corpus, folder, sentences."""
    folder = tmp_path_factory.mktemp("run")
    profiled.detect_profile(load_encoder(profiled.planted_model(2)), folder / "run")
    table = pl.read_parquet(folder / "run" / "tokens.parquet")
    texts = list(ATTACKS) + table["token"].to_list()[len(ATTACKS) :]
    sticky = ["sticky"] * len(ATTACKS) + ["benign"] * (len(table) - len(ATTACKS))
    named = pl.Series(texts, dtype=pl.String)
    table = table.with_columns(
        token=named, decoded=named, verdict=pl.Series(sticky), lift=pl.Series(range(len(table), 0, -1)) * 1e-3
    )
    table.write_parquet(folder / "run" / "tokens.parquet")
    names = dict(zip(table["token_id"], texts, strict=True))
    vocabulary = pl.read_parquet(folder / "run" / "vocabulary.parquet")
    renamed = [names.get(k, token) for k, token in vocabulary.select("token_id", "token").iter_rows()]
    vocabulary.with_columns(token=pl.Series(renamed)).write_parquet(folder / "run" / "vocabulary.parquet")
    evidence = pl.read_parquet(folder / "run" / "evidence.parquet")
    evil = "<img src=x onerror=alert(7)>\u202e"
    evidence = evidence.with_columns(
        token_id=pl.concat([table["token_id"].head(4), evidence["token_id"].tail(8)]),
        typical_carrier=pl.lit(evil),
        typical_anchor=pl.lit("</script>" + evil),
    )
    evidence.write_parquet(folder / "run" / "evidence.parquet")
    record = json.loads((folder / "run" / "run.json").read_text("utf-8"))
    record["model"]["name"] = record["corpus"]["source"] = record["versions"]["torch"] = evil
    record["settings"]["seed"] = evil
    (folder / "run" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return Path(shutil.move(folder / "run", folder / "run <b>\u202e"))


def test_in_the_page_it_is_text(hostile_run):
    html = stickytoken.report(hostile_run)
    assert_harmless(html.replace("\u2068", "").replace("\u2069", ""))
    page = Page(html)
    assert set(page.tags) <= {
        "html", "head", "meta", "link", "title", "style", "body", "a", "header", "p", "time", "h1", "h2",
        "h3", "br", "bdi", "dl", "dt", "dd", "div", "ul", "ol", "li", "main", "section", "article", "span",
        "strong", "svg", "line", "rect", "details", "summary", "blockquote", "figure", "figcaption", "table",
        "caption", "thead", "tbody", "tr", "th", "td", "form", "label", "input", "select", "option", "output",
        "code", "footer", "script",
    }  # fmt: skip
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert set(ATTACKS.values()) <= set(page.tokens)
    assert r"<img src=x onerror=alert(7)>\u202e" in page.text
    assert page.tags.count("script") == 3


def test_in_markdown_it_is_text(hostile_run):
    text = stickytoken.report(hostile_run, format="md")
    assert_harmless(text)
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    rendered = parser.render(text)
    page = _Tags(rendered)
    assert page.tags <= {
        "h1",
        "h2",
        "h3",
        "p",
        "strong",
        "ul",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    for shown in ATTACKS.values():
        assert shown.strip() in page.text, shown


@pytest.mark.parametrize("text", ATTACKS)
def test_markdown_of_a_text_renders_to_that_text(text):
    page = _Tags(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown(text)))
    assert page.tags <= {"p"}
    assert page.text.strip() == ATTACKS[text].strip()


def _Tags(html):  # noqa: N802 - it stands for a parser
    from html.parser import HTMLParser

    class Reader(HTMLParser):
        def __init__(self):
            super().__init__(convert_charrefs=True)
            self.tags, self.text = set(), ""

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

        def handle_data(self, data):
            self.text += data

    reader = Reader()
    reader.feed(html)
    return reader


def test_in_json_it_comes_back_as_it_was(hostile_run):
    text = stickytoken.report(hostile_run, format="json")
    assert text.isascii()
    document = json.loads(text)
    assert {row["token"] for row in document["flagged"]} == set(ATTACKS)


def test_json_inside_html_cannot_end_its_script():
    value = ["</script>", "<!--", "&amp;", "\u2028", "\ud800", {"<b>": 1}]
    text = str(json_for_html(value))
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_a_token_that_spells_an_entity_is_shown_as_it_is():
    """Plotly reads entities: the five characters of this token are no ampersand."""
    assert label("&amp;") == "\u2068&amp;amp;\u2069"


def test_lone_surrogates_are_spelled_out(hostile_run):
    """A run folder cannot hold them, a caller's own names can."""
    assert label("\ud800<b>") == "\u2068\\ud800&lt;b&gt;\u2069"
    assert markdown("\udfff") == r"\\udfff"
    folder = hostile_run.with_name("run-\udc80")
    try:
        folder.symlink_to(hostile_run)
    except OSError:
        pytest.skip("this file system has no such names")
    html = stickytoken.report(folder)
    assert r"run-\udc80" in html
    html.encode()
    stickytoken.report(folder, format="md").encode()


def test_plotly_gets_token_text_escaped(hostile_run):
    figures = json.dumps(
        [figure.plot.to_plotly_json() for figure in report_figures(read_content(hostile_run))], default=str
    )
    for mark in ("<img", "<svg", "<script", "<iframe", "<a ", "</script"):
        assert mark not in figures


@pytest.mark.browser
def test_in_a_browser_nothing_happens(hostile_run, tmp_path):
    out = tmp_path / "report.html"
    stickytoken.report(hostile_run, out=out)
    with opened(out) as (page, heard):
        wait_for_plots(page)
        page.hover("#figure-lift-contraction .plot")
        assert page.evaluate("document.querySelectorAll('img, iframe, svg [onload]').length") == 0
        assert page.evaluate("document.querySelectorAll('script').length") == 3
        shown = page.evaluate(
            "[...document.querySelectorAll('.tokens .token')].map(each => each.textContent)"
        )
        assert set(shown) == set(ATTACKS.values())
        assert heard == []
