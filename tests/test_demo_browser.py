"""The web app in a real browser: every tab as a visitor uses it, quiet, by keyboard, on a phone, hostile."""

import json
import re
import shutil
import urllib.request
from urllib.parse import urlsplit

import polars as pl
import pytest

import profiled
import tiny
from served import (
    ATTACKS,
    SHOWN,
    browsing,
    context_of,
    hostile_model,
    open_tab,
    serving,
    started_browser,
    visited,
)
from stickytoken import load_encoder

pytest.importorskip("gradio", reason="gradio is not installed")

TOKEN = re.compile("^Token")
WIDE = {"viewport": {"width": 1400, "height": 900}}


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A model whose tokens are hostile; its run, another one, one not finished, one of a newer schema."""
    root = tmp_path_factory.mktemp("hostile")
    hostile_model().save(str(root / "model"))
    runs = root / "runs"
    run = profiled.detect_profile(load_encoder(root / "model"), runs / "run <img src=x onerror=alert(0)>")
    verdict = pl.when(pl.col("token").is_in(ATTACKS)).then(pl.lit("sticky")).otherwise("verdict")
    run.tokens.with_columns(verdict=verdict.alias("verdict")).write_parquet(run.path / "tokens.parquet")
    profiled.detect_profile(load_encoder(root / "model"), runs / "second", seed=7)
    record = json.loads((run.path / "run.json").read_text("utf-8"))
    for name, change in (("half", {"result": None}), ("newer", {"schema_version": 99})):
        shutil.copytree(run.path, runs / name)
        (runs / name / "run.json").write_text(json.dumps(record | change), encoding="utf-8")
    return root / "model", run.path, runs


@pytest.fixture(scope="module")
def app(hostile):
    """The address of an app with hostile tokens and several runs."""
    model, run, runs = hostile
    with serving(context_of(model, [run], runs)) as url:
        yield url


@pytest.fixture(scope="module")
def bert_app(tmp_path_factory):
    """The address of an app with a model that has layers and attention, and without a run."""
    root = tmp_path_factory.mktemp("bert")
    backbone = tiny.bert_backbone(root / "backbone", max_length=128)
    tiny.sentence_transformer(backbone).save(str(root / "model"))
    with serving(context_of(root / "model")) as url:
        yield url


def alert(page):
    """The text of the one alert that is shown."""
    toast = page.get_by_test_id("toast-body")
    toast.first.wait_for()
    return toast.first.inner_text()


def choose(page, field, text):
    """Choose an entry of a list by keyboard."""
    field.focus()
    field.press("Control+a")
    page.keyboard.type(text)
    page.get_by_role("option").filter(has_text=text).first.wait_for()
    field.press("ArrowDown")
    field.press("Enter")


def drawn(page, scope, count):
    page.wait_for_function(
        "([scope, count]) => document.querySelectorAll(`${scope} .js-plotly-plot .main-svg`).length >= count",
        arg=[scope, count],
    )


# Try.


def test_it_opens_on_a_worked_example(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        assert SHOWN[0] in page.inner_text("#try-answer")
        assert "benign" in page.inner_text("#try-answer")
        drawn(page, "body", 2)
        assert (
            page.locator(".js-plotly-plot[role=img][aria-label*='Similarity of the two sentences']").count()
            == 1
        )
        assert heard == []


def test_another_token_is_tried_by_name_by_id_and_from_the_list(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Try")
        token = panel.get_by_role("textbox", name=TOKEN)
        token.fill("baba")
        token.press("Enter")
        page.wait_for_function("document.querySelector('#try-answer .token').textContent === 'baba'")
        said = page.inner_text("#try-answer .lead")
        token_id = said.split("(id ")[1].split(",")[0].split(")")[0]
        token.fill("!")
        panel.get_by_role("button", name="Show what happens").click()
        page.wait_for_function("document.querySelector('#try-answer .token').textContent === '!'")
        token.fill(f"#{token_id}")
        token.press("Enter")
        page.wait_for_function("document.querySelector('#try-answer .token').textContent === 'baba'")
        panel.get_by_label("From the run's list").click()
        page.get_by_role("option").filter(has_text=SHOWN[1]).click()
        page.wait_for_function(
            "name => document.querySelector('#try-answer .token').textContent === name", arg=SHOWN[1]
        )
        assert heard == []


def test_sentences_placement_and_copies_change_the_answer(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Try")
        panel.get_by_label("Sentence A").fill("baba bama")
        panel.get_by_label("Sentence B").fill("laga lara")
        panel.get_by_text("in front", exact=True).click()
        page.wait_for_function("document.querySelector('#try-answer .lead').textContent.includes('in front')")
        slider = panel.get_by_role("slider", name="Copies")
        slider.focus()
        before = page.inner_text("#try-answer .headline")
        slider.press("ArrowRight")
        panel.get_by_role("button", name="Show what happens").click()
        page.wait_for_function(
            "before => document.querySelector('#try-answer .headline').textContent !== before", arg=before
        )
        assert page.inner_text("#try-answer .headline").startswith("9 copies")
        assert "baba bama" in page.inner_text("#try-sentences")
        assert heard == []


@pytest.mark.parametrize(
    ("label", "text", "reason"),
    [
        ("Token", "volcano", "the vocabulary has no token 'volcano'"),
        (
            "Token",
            "<img src=x onerror=alert(8)>",
            "the vocabulary has no token '<img src=x onerror=alert(8)>'",
        ),
        ("Token", "#999999", "token id 999999 cannot occur in text"),
        ("Sentence A", "x" * 1001, "sentence A has 1,001 characters"),
        ("Sentence B", " ", "sentence B is empty"),
    ],
)
def test_bad_input_is_one_line_in_the_page(browser, app, label, text, reason):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Try")
        panel.get_by_role("textbox", name=re.compile(f"^{label}")).fill(text)
        panel.get_by_role("button", name="Show what happens").click()
        said = alert(page)
        assert reason in said
        assert "Traceback" not in page.content()
        assert page.locator("img[src=x]").count() == 0
        assert heard == []


def test_a_model_without_a_run_can_be_tried(browser, bert_app):
    with browsing(browser, bert_app, **WIDE) as (page, heard):
        assert "No run of this model is open" in page.inner_text("#try-answer")
        open_tab(page, "Explore")
        page.get_by_text("There is no run to look through").wait_for()
        open_tab(page, "Compare")
        page.get_by_text("Comparing takes two runs, and there is none").wait_for()
        assert heard == []


# Explore.


def rows(page):
    """First cells of the rows of the table that are drawn."""
    cells = page.locator("#explore-table [role=gridcell].first-column")
    return [text.strip() for text in cells.all_inner_texts() if text.strip()]


def test_the_table_is_filtered_and_a_token_shows_its_evidence(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Explore")
        page.wait_for_selector("#explore-evidence .card")
        assert page.inner_text("#explore-evidence .card .token >> nth=0") == SHOWN[0]
        assert "pair" in page.inner_text("#explore-evidence").lower()
        everything = page.inner_text("#explore-count")
        panel.get_by_label("Search").fill("baba")
        page.wait_for_function(
            "before => document.querySelector('#explore-count').innerText !== before", arg=everything
        )
        page.wait_for_function(
            "document.querySelectorAll('#explore-table [role=gridcell].first-column').length <= 4"
        )
        assert "baba" in " ".join(rows(page))
        page.locator("#explore-table [role=gridcell]").get_by_text("baba", exact=True).first.click()
        page.wait_for_function(
            "document.querySelector('#explore-evidence .card .token').textContent === 'baba'"
        )
        assert heard == []


def test_a_token_is_chosen_by_keyboard(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Explore")
        choice = panel.get_by_label("Token to look at")
        choice.focus()
        choice.press("Control+a")
        page.keyboard.type("laga")
        page.get_by_role("option").filter(has_text="laga").wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "document.querySelector('#explore-evidence .card .token').textContent === 'laga'"
        )
        assert heard == []


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_got(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        assert "1 folder could not be read as a run" in page.inner_text("#welcome")
        assert "newer" in page.locator("#welcome").text_content()
        panel = open_tab(page, "Explore")
        choose(page, panel.get_by_label("Run", exact=True), "half (not finished)")
        page.wait_for_function("document.querySelector('#explore-about').innerText.includes('not finished')")
        assert "continues it" in page.inner_text("#explore-about")
        assert "0 tokens" in page.inner_text("#explore-count")
        assert heard == []


# Explain.


def test_a_token_is_explained_layer_by_layer(browser, bert_app):
    with browsing(browser, bert_app, **WIDE) as (page, heard):
        panel = open_tab(page, "Explain")
        page.wait_for_selector("#explain-answer .headline", timeout=60_000)
        panel.get_by_role("textbox", name=TOKEN).fill("river")
        panel.get_by_role("button", name="Explain").click()
        page.wait_for_function(
            "document.querySelector('#explain-answer .headline').textContent.includes(\"'river'\")"
        )
        drawn(page, "body", 5)  # two of Try, three here
        for title in ("Layer by layer", "All measures", "Attention heads"):
            assert panel.get_by_role("heading", name=title, exact=True).is_visible()
        assert "Nearest embeddings" in page.inner_text("#explain-tables")
        assert heard == []


def test_a_model_without_attention_is_explained_without_it(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Explain")
        page.wait_for_selector("#explain-answer .headline", timeout=60_000)
        assert "it has no attention and no layers" in page.inner_text("#explain-answer")
        assert panel.get_by_role("heading", name="All measures", exact=True).is_visible()
        assert not panel.get_by_role("heading", name="Attention heads", exact=True).is_visible()
        panel.get_by_role("textbox", name=TOKEN).fill("volcano")
        panel.get_by_role("button", name="Explain").click()
        assert "the vocabulary has no token 'volcano'" in alert(page)
        assert heard == []


# Compare.


def test_two_runs_are_compared(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Compare")
        page.wait_for_selector("#compare-answer table")
        assert "Agreement" in page.inner_text("#compare-answer") or "half" in page.inner_text(
            "#compare-answer"
        )
        choose(page, panel.get_by_label("Beside run"), "second")
        page.wait_for_function("document.querySelector('#compare-answer').innerText.includes('second')")
        panel.get_by_role("heading", name="Sticky tokens, run by run").wait_for()
        choose(page, panel.get_by_label("Run", exact=True), "second")
        assert "choose two" in alert(page)
        assert heard == []


# All of it.


def test_hostile_text_is_text_everywhere(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        for tab in ("Try", "Explore", "Explain", "Compare"):
            open_tab(page, tab)
            if tab == "Explain":
                page.wait_for_selector("#explain-answer .headline", timeout=60_000)
            page.wait_for_timeout(500)
            shown = page.locator("body").inner_text()
            assert not {"\u202e", "\x1b"} & set(shown.replace("\u2068", "").replace("\u2069", ""))
            assert page.locator("img[src=x], svg[onload], a[href^=javascript], [onmouseover]").count() == 0
        open_tab(page, "Explore")
        assert set(SHOWN[:4]) <= set(rows(page))
        assert heard == []


def test_the_policy_allows_no_other_host(app):
    with urllib.request.urlopen(app) as answer:
        policy = answer.headers["content-security-policy"]
    assert urlsplit(app).hostname == "127.0.0.1"
    assert "default-src 'self'" in policy
    assert "http" not in policy


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, app, scheme):
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    with browsing(browser, app, **options) as (page, heard):
        for tab in ("Try", "Explore", "Explain", "Compare"):
            button = page.get_by_role("tab", name=tab, exact=True)
            if not button.is_visible():
                page.get_by_role("button", name="More").or_(
                    page.locator(".overflow-menu button")
                ).first.click()
                page.locator(".overflow-dropdown").get_by_text(tab, exact=True).click()
            else:
                button.click()
            page.wait_for_timeout(800)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
        assert heard == []


def test_everything_can_be_reached_and_named_by_keyboard(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        unnamed = page.evaluate(
            "[...document.querySelectorAll('input, textarea, select, button')].filter(each => "
            "each.offsetParent && !each.labels?.length && !each.getAttribute('aria-label') && "
            "!each.textContent.trim() && !each.title).map(each => each.outerHTML.slice(0, 200))"
        )
        assert unnamed == []
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent"
            reached.add(page.evaluate(focused).strip())
        for name in ("Try", "Show what happens"):
            assert any(name in each for each in reached), reached
        assert heard == []


def test_two_visitors_do_not_disturb_each_other(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        other = browser.new_context(**WIDE).new_page()
        others_heard = visited(other, app)
        for visitor, name in ((page, "baba"), (other, "laga")):
            visitor.locator("#try-token").get_by_role("textbox").fill(name)
        for visitor in (page, other):
            visitor.get_by_role("button", name="Show what happens").click()
        for visitor, name in ((page, "baba"), (other, "laga")):
            visitor.wait_for_function(
                "name => document.querySelector('#try-answer .token').textContent === name", arg=name
            )
        page.reload()
        page.wait_for_selector("#try-answer .headline")
        assert page.inner_text("#try-answer .token >> nth=0") == SHOWN[0]
        assert heard == others_heard == []
