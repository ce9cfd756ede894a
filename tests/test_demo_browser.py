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
)
from stickytoken import load_encoder

pytest.importorskip("gradio", reason="gradio is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

TOKEN = re.compile("^Token")
WIDE = {"viewport": {"width": 1400, "height": 900}}
TABS = ("Try", "Explore", "Explain", "Compare")
# Words of pictures that are shown and begin or end outside of them.
CUT_OFF = """
    [...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetParent).flatMap(plot => {
        const own = plot.getBoundingClientRect();
        return [...plot.querySelectorAll('.main-svg text')].filter(text => {
            const place = text.getBoundingClientRect();
            return place.width && (place.left < own.left - 1 || place.right > own.right + 1);
        }).map(text => text.textContent);
    })
"""


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


@pytest.fixture(scope="module")
def opened(browser, app):
    """One visit for all tests that do not mind what others typed before them."""
    with browsing(browser, app, **WIDE) as visit:
        yield visit


@pytest.fixture(scope="module")
def opened_bert(browser, bert_app):
    with browsing(browser, bert_app, **WIDE) as visit:
        yield visit


@pytest.fixture
def page(opened):
    """The page of that visit; nothing may be heard from it during a test."""
    found, heard = opened
    heard.clear()
    yield found
    assert heard == []


@pytest.fixture
def bert_page(opened_bert):
    found, heard = opened_bert
    heard.clear()
    yield found
    assert heard == []


def alert(page):
    """The text of the one alert that is shown; it is closed."""
    toast = page.get_by_test_id("toast-body")
    toast.wait_for()
    said = toast.inner_text()
    page.get_by_test_id("toast-close").click()
    toast.wait_for(state="detached")
    return said


def choose(page, field, text):
    """Choose the one entry of a list that holds a text, by keyboard."""
    field.focus()
    field.press("Control+a")
    page.keyboard.type(text)
    options = page.get_by_role("option")
    expect(options).to_have_count(1)
    expect(options).to_contain_text(text)
    field.press("ArrowDown")
    field.press("Enter")
    expect(options).to_have_count(0)


def drawn(page, count):
    """Wait until so many pictures are drawn, and named."""
    page.wait_for_function(
        "count => [...document.querySelectorAll('.js-plotly-plot[role=img]')]"
        ".filter(each => each.querySelector('.main-svg')).length >= count",
        arg=count,
    )


# Try.


def named(page):
    """The token that the answer is about."""
    return page.locator("#try-answer .lead .token").first


def test_it_opens_on_a_worked_example(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        assert SHOWN[0] in page.inner_text("#try-answer")
        assert "benign" in page.inner_text("#try-answer")
        drawn(page, 2)
        picture = page.locator(".js-plotly-plot[role=img][aria-label*='Similarity of the two sentences']")
        expect(picture).to_have_count(1)
        assert heard == []


def test_another_token_is_tried_by_name_by_id_and_from_the_list(page):
    panel = open_tab(page, "Try")
    token = panel.get_by_role("textbox", name=TOKEN)
    token.fill("baba")
    token.press("Enter")
    expect(named(page)).to_have_text("baba")
    token_id = re.search(r"\(id (\d+)", page.inner_text("#try-answer .lead")).group(1)
    token.fill("!")
    panel.get_by_role("button", name="Show what happens").click()
    expect(named(page)).to_have_text("!")
    token.fill(f"#{token_id}")
    token.press("Enter")
    expect(named(page)).to_have_text("baba")
    panel.get_by_label("From the run's list").click()
    page.get_by_role("option").filter(has_text=SHOWN[1]).click()
    expect(named(page)).to_have_text(SHOWN[1])


def test_sentences_placement_and_copies_change_the_answer(page):
    panel = open_tab(page, "Try")
    panel.get_by_label("Sentence A").fill("baba bama")
    panel.get_by_label("Sentence B").fill("laga lara")
    panel.get_by_role("textbox", name=TOKEN).fill("!")
    panel.get_by_text("in front", exact=True).click()
    expect(page.locator("#try-answer .lead")).to_contain_text("in front")
    expect(page.locator("#try-sentences")).to_contain_text("baba bama")
    slider = panel.get_by_role("slider", name="Copies")
    slider.focus()
    before = int(slider.input_value())
    slider.press("ArrowRight")
    panel.get_by_role("button", name="Show what happens").click()
    expect(page.locator("#try-answer .headline")).to_have_text(re.compile(f"^{before + 1} copies"))


def test_bad_input_is_one_line_in_the_page(page):
    panel = open_tab(page, "Try")
    usual = {"Token": "baba", "Sentence A": "baba bama", "Sentence B": "laga lara"}
    for label, text, reason in (
        ("Token", "volcano", "the vocabulary has no token 'volcano'"),
        ("Token", ATTACKS[0] + "x", f"the vocabulary has no token '{ATTACKS[0]}x'"),
        ("Token", "#999999", "token id 999999 cannot occur in text"),
        ("Sentence A", "x" * 1001, "sentence A has 1,001 characters"),
        ("Sentence B", " ", "sentence B is empty"),
    ):
        for name, value in (usual | {label: text}).items():
            panel.get_by_role("textbox", name=re.compile(f"^{name}")).fill(value)
        panel.get_by_role("button", name="Show what happens").click()
        assert reason in alert(page)
        assert "Traceback" not in page.content()
        assert page.locator("img[src=x]").count() == 0
    for name, value in usual.items():  # others go on with this page
        panel.get_by_role("textbox", name=re.compile(f"^{name}")).fill(value)


def test_a_model_without_a_run_can_be_tried(bert_page):
    assert "No run of this model is open" in bert_page.inner_text("#try-answer")
    open_tab(bert_page, "Explore")
    bert_page.get_by_text("There is no run to look through").wait_for()
    open_tab(bert_page, "Compare")
    bert_page.get_by_text("Comparing takes two runs, and there is none").wait_for()


@pytest.mark.parametrize("narrow", [False, True])
def test_a_second_picture_is_dressed_like_the_first(browser, app, narrow):
    """Dark where the page is dark, panels below each other where it is narrow."""
    size = {"width": 390 if narrow else 1400, "height": 900}
    dressed = """() => [...document.querySelectorAll('.js-plotly-plot')].filter(each => each.offsetParent)
        .every(each => each.layout?.meta?.dressed === 'dark NARROW'
            && (!NARROW || [undefined, each._fullLayout.height].includes(each.layout.meta.narrow?.height))
            && each.querySelector('.ytick text, .xtick text')?.style.fill === 'rgb(230, 233, 238)')"""
    with browsing(browser, app, viewport=size, color_scheme="dark") as (page, heard):
        drawn(page, 2)
        page.wait_for_function(dressed.replace("NARROW", str(narrow).lower()))
        page.locator("#try-token").get_by_role("textbox").fill("baba")
        page.get_by_role("button", name="Show what happens").click()
        page.wait_for_function(
            "[...document.querySelectorAll('.js-plotly-plot[role=img] .annotation-text')]"
            ".some(each => each.textContent.includes('baba'))"
        )
        page.wait_for_function(dressed.replace("NARROW", str(narrow).lower()))
        if not narrow:
            page.set_viewport_size({"width": 390, "height": 900})
            page.wait_for_function(dressed.replace("NARROW", "true"))
        assert heard == []


# Explore.


def first_cells(page):
    """First cells of the rows of the table that are drawn."""
    return page.locator("#explore-table [role=gridcell].first-column")


def rows(page):
    return [text.strip() for text in first_cells(page).all_inner_texts() if text.strip()]


def looked_at(page):
    """The token whose evidence is shown."""
    return page.locator("#explore-evidence .card .token").first


def test_the_table_is_filtered_and_a_token_shows_its_evidence(page):
    panel = open_tab(page, "Explore")
    expect(looked_at(page)).to_be_visible()
    assert "pair" in page.inner_text("#explore-evidence").lower()
    everything = page.inner_text("#explore-count")
    search = panel.get_by_label("Search")
    search.fill("baba")
    expect(page.locator("#explore-count")).not_to_have_text(everything)
    cell = first_cells(page).get_by_text("baba", exact=True)
    cell.first.click()
    expect(looked_at(page)).to_have_text("baba")
    assert all("baba" in row.lower() for row in rows(page))
    search.fill("")
    expect(page.locator("#explore-count")).to_have_text(everything)


def test_a_token_is_chosen_by_keyboard(page):
    panel = open_tab(page, "Explore")
    choose(page, panel.get_by_label("Token to look at"), "laga (")
    expect(looked_at(page)).to_have_text("laga")


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_got(page):
    assert "1 folder could not be read as a run" in page.inner_text("#welcome")
    assert "newer" in page.locator("#welcome").text_content()
    panel = open_tab(page, "Explore")
    run = panel.get_by_label("Run", exact=True)
    usual = run.input_value()
    everything = page.inner_text("#explore-count")
    choose(page, run, "half (not finished)")
    expect(page.locator("#explore-about")).to_contain_text("not finished")
    assert "continues it" in page.inner_text("#explore-about")
    expect(page.locator("#explore-count")).to_contain_text("0 tokens")
    choose(page, run, usual)
    expect(page.locator("#explore-count")).to_have_text(everything)


# Explain.


def titles(panel):
    """Titles of the figures that are shown."""
    return panel.locator(".figure").filter(visible=True).locator("h3")


def test_a_token_is_explained_with_the_figures_of_the_report(bert_page):
    panel = open_tab(bert_page, "Explain")
    headline = bert_page.locator("#explain-answer .headline")
    expect(headline).to_be_visible(timeout=60_000)
    panel.get_by_role("textbox", name=TOKEN).fill("river")
    panel.get_by_role("button", name="Explain").click()
    expect(headline).to_contain_text("'river'", timeout=60_000)
    without = [
        "All measures",
        "Attention that the copies receive, by layer",
        "Attention that the copies receive, by layer and head",
        "Drift of the hidden states, by layer",
        "What the copies supply to the sentence vector",
        "The row of the embedding matrix",
    ]
    attributed = "One pair's similarity, token by token"
    expect(titles(panel)).to_have_text(without)
    drawn(bert_page, 2 + len(without))
    assert "Nearest embeddings" in bert_page.inner_text("#explain-tables")
    panel.get_by_label("Attribution").check()
    panel.get_by_role("button", name="Explain").click()
    expect(titles(panel)).to_have_text([*without[:5], attributed, without[5]], timeout=60_000)
    expect(bert_page.locator("#explain-tables")).to_contain_text("Similarity as a sum over tokens")


def test_a_model_without_attention_is_explained_without_it(page):
    panel = open_tab(page, "Explain")
    answer = page.locator("#explain-answer")
    expect(answer.locator(".headline")).to_be_visible(timeout=60_000)
    expect(answer).to_contain_text("it has no attention and no layers")
    expect(titles(panel).first).to_have_text("All measures")
    expect(titles(panel).filter(has_text="Attention")).to_have_count(0)
    panel.get_by_role("textbox", name=TOKEN).fill("volcano")
    panel.get_by_role("button", name="Explain").click()
    assert "the vocabulary has no token 'volcano'" in alert(page)


# Compare.


def test_two_runs_are_compared(page):
    panel = open_tab(page, "Compare")
    answer = page.locator("#compare-answer")
    expect(answer.locator("table").first).to_be_visible()
    first, beside = panel.get_by_label("Run", exact=True), panel.get_by_label("Beside run")
    usual = first.input_value()
    choose(page, beside, "half (not finished)")
    expect(answer).to_contain_text("half")
    choose(page, beside, "second")
    expect(answer).to_contain_text("Agreement")
    expect(titles(panel)).to_have_text(["Sticky tokens, run by run", "How far the vocabularies reach"])
    choose(page, first, "second")
    assert "choose two" in alert(page)
    choose(page, first, usual)
    expect(answer).to_contain_text("Agreement")


# All of it.


def settled(page, tab):
    """Open a tab, and wait until all of it is there."""
    panel = open_tab(page, tab)
    if tab == "Explain":
        expect(page.locator("#explain-answer .headline")).to_be_visible(timeout=60_000)
    expect(panel.locator(".js-plotly-plot[role=img]").first).to_be_visible()
    return panel


def test_hostile_text_is_text_everywhere(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        for tab in TABS:
            settled(page, tab)
            shown = page.locator("body").inner_text()
            assert not {"\u202e", "\x1b"} & set(shown)
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


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, app):
    with browsing(browser, app, viewport={"width": 390, "height": 844}, color_scheme="dark") as visit:
        page, heard = visit
        for tab in TABS:
            settled(page, tab)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
            # Words of a picture that stick out of it cannot be read, whether or not the page is wider.
            if tab != "Explain":  # its figures have long names of measures, cut off on a phone
                page.wait_for_function(f"() => ({CUT_OFF}).length === 0")
        assert heard == []


def test_everything_can_be_reached_and_named_by_keyboard(page):
    open_tab(page, "Try")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, select, button')].filter(each => "
        "each.offsetParent && !each.labels?.length && !each.getAttribute('aria-label') && "
        "!each.textContent.trim() && !each.title).map(each => each.outerHTML.slice(0, 200))"
    )
    assert unnamed == []
    page.get_by_role("tab", name="Try", exact=True).focus()
    reached = {"Try"}
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent"
        reached.add(page.evaluate(focused).strip())
    for name in ("Sentence A", "Token", "Copies", "Show what happens"):
        assert any(name in each for each in reached), reached


def test_two_visitors_do_not_disturb_each_other(browser, app, page):
    with browsing(browser, app, **WIDE) as (other, heard):
        open_tab(page, "Try")
        for visitor, name in ((page, "baba"), (other, "laga")):
            visitor.locator("#try-token").get_by_role("textbox").fill(name)
        for visitor in (page, other):
            visitor.get_by_role("button", name="Show what happens").click()
        for visitor, name in ((page, "baba"), (other, "laga")):
            expect(named(visitor)).to_have_text(name)
        other.reload()
        expect(named(other)).to_have_text(SHOWN[0])
        assert heard == []
