"""Token text is hostile: in every form of a report it is text and nothing else."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from markdown_it import MarkdownIt

import planted
import stickytoken
from hostile import HOSTILE, assert_harmless
from report_pages import Page, opened, wait_for_plots
from stickytoken.explanation.files import explanation_folders
from stickytoken.reports.figures import label
from stickytoken.reports.templating import json_for_html
from stickytoken.validation import markdown, visible

_ATTACKS = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<b>b</b><br>&lt;&amp;", "$x^2$",
    "</title></style><svg onload=alert(3)>", '"><iframe src=//evil.example>', "' onmouseover='alert(4)",
    "{{ 7 * 7 }}{% raw %}", "%{x} %{customdata}<extra>e</extra>", '<a href="javascript:alert(5)">a</a>',
    "![i](http://evil.example/i.png)", "[a](javascript:alert(6))", "|pipe|`code`<!-- c -->",
    "https://evil.example/p www.evil.example me@evil.example", "שלום \u202e אב", "\u2028\u2029", "  spaces  ",
)  # fmt: skip
ATTACKS = {text: visible(text) for text in (*HOSTILE, *_ATTACKS)}


@pytest.fixture(scope="module")
def hostile_run(run, tmp_path_factory):
    """A run in which every text is hostile: tokens, model, corpus, folder, sentences."""
    folder = Path(shutil.copytree(run.path, tmp_path_factory.mktemp("hostile") / "run <b>\u202e"))
    texts = pl.Series([*ATTACKS, *run.tokens["token"][len(ATTACKS) :]])
    verdict = pl.Series(["sticky"] * len(ATTACKS) + ["benign"] * (len(texts) - len(ATTACKS)))
    lift = pl.Series(range(len(texts), 0, -1)) * 1e-3
    table = run.tokens.with_columns(token=texts, decoded=texts, verdict=verdict, lift=lift)
    planted.replace_tokens(folder, table)
    named = pl.col("token_id").replace_strict(table["token_id"], texts, default=pl.col("token"))
    run.vocabulary.with_columns(token=named).write_parquet(folder / "vocabulary.parquet")
    evil = "<img src=x onerror=alert(7)>\u202e"
    record = json.loads((folder / "run.json").read_text("utf-8"))
    record["model"]["name"] = record["corpus"]["source"] = record["versions"]["torch"] = evil
    planted.edit_record(folder, **record)
    return folder


def test_in_the_page_it_is_text(hostile_run):
    html = stickytoken.report(hostile_run)
    assert_harmless(html.replace("\u2068", "").replace("\u2069", ""))
    page = Page(html)
    assert set(page.tags) <= {
        "html", "head", "meta", "link", "title", "style", "body", "a", "header", "p", "time", "h1", "h2",
        "h3", "br", "bdi", "dl", "dt", "dd", "div", "ul", "ol", "li", "main", "section", "article", "span",
        "strong", "svg", "line", "rect", "details", "summary", "blockquote", "figure", "figcaption", "table",
        "caption", "thead", "tbody", "tr", "th", "td", "form", "label", "input", "select", "option", "output",
        "code", "em", "footer", "script", "nav", "button",
    }  # fmt: skip
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert set(ATTACKS.values()) <= set(page.tokens)
    assert r"<img src=x onerror=alert(7)>\u202e" in page.text
    assert page.tags.count("script") == 3


def test_in_markdown_it_is_text(hostile_run):
    text = stickytoken.report(hostile_run, format="md")
    assert_harmless(text)
    page = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    usual = {"h1", "h2", "h3", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(page.tags) <= usual
    for escaped in ATTACKS.values():
        assert escaped.strip() in page.text, escaped


def test_markdown_of_a_text_renders_to_that_text():
    for text, escaped in ATTACKS.items():
        page = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown(text)))
        assert set(page.tags) <= {"p"}
        assert page.text.strip() == escaped.strip()


def test_in_json_it_comes_back_as_it_was(hostile_run):
    text = stickytoken.report(hostile_run, format="json")
    assert text.isascii()
    assert {row["token"] for row in json.loads(text)["flagged"]} == set(ATTACKS)


def test_json_inside_html_cannot_end_its_script():
    value = ["</script>", "<!--", "&amp;", "\u2028", "\ud800", {"<b>": 1}]
    text = str(json_for_html(value))
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_lone_surrogates_are_spelled_out(hostile_run):
    """A run folder cannot hold them, a caller's own names can."""
    assert label("\ud800<b>&amp;") == "\u2068\\ud800&lt;b&gt;&amp;amp;\u2069"  # Plotly reads entities
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


# Explanations.

EVIL = "<img src=x onerror=alert(1)>\u202e</script>|`"


@pytest.fixture(scope="module")
def hostile_explanations(explained_run, tmp_path_factory):
    run = Path(shutil.copytree(explained_run, tmp_path_factory.mktemp("hostile") / "run"))
    for folder in explanation_folders(run / "explain"):
        document = json.loads((folder / "explanation.json").read_text("utf-8"))
        token = document["tokens"][0] | {"token": EVIL, "verdict": EVIL, "run_verdict": EVIL}
        token["findings"] = [finding | {"called": EVIL} for finding in token["findings"]]
        document |= {"tokens": [token], "notes": [EVIL], "source": EVIL, "pooling": EVIL}
        document["settings"]["placement"] = EVIL
        (folder / "explanation.json").write_text(json.dumps(document), encoding="utf-8")
        texts = ("row_token", "column_token", "carrier", "anchor", "benign", "neighbour", "token")
        rewrite(folder.glob("*.parquet"), texts)
    rewrite((run / "tokens.parquet", run / "vocabulary.parquet"), ["token"])
    return run


def rewrite(paths, names):
    for path in paths:
        table = pl.read_parquet(path)
        evil = [pl.lit(EVIL).alias(name) for name in names if name in table]
        table.with_columns(evil).write_parquet(path)


@pytest.mark.slow
def test_what_stands_in_the_folder_of_a_run_is_text(hostile_explanations):
    html = stickytoken.report(hostile_explanations)
    assert_harmless(html.replace("\u2068", "").replace("\u2069", ""))
    page = Page(html)
    assert {"img", "iframe", "b"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 3
    assert page.text.count(visible(EVIL)) > 10
    figures_json = json.dumps(page.data["figures"])
    assert "&lt;img" in figures_json
    assert "<img" not in figures_json
    assert_harmless(stickytoken.report(hostile_explanations, format="md"))
    assert "<img" not in stickytoken.report(hostile_explanations, format="md")
    document = json.loads(stickytoken.report(hostile_explanations, format="json"))
    assert all(explanation["token"] == EVIL for explanation in document["explanations"])


@pytest.mark.parametrize("name", ["hostile_run", "hostile_explanations"])
def test_in_a_browser_nothing_happens(browser, request, name, tmp_path):
    out = tmp_path / "report.html"
    stickytoken.report(request.getfixturevalue(name), out=out)
    with opened(browser, out, viewport={"width": 390, "height": 900}) as (page, heard):
        wait_for_plots(page)
        page.hover("[data-figure]:last-of-type")
        assert page.evaluate("document.querySelectorAll('img, iframe, svg [onload]').length") == 0
        assert page.evaluate("document.querySelectorAll('script').length") == 3
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        if name == "hostile_run":
            assert set(page.locator(".tokens .token").all_text_contents()) == set(ATTACKS.values())
        assert heard == []
