"""Try in a real browser, as a visitor uses it."""

import re

import pytest

from web_app import ATTACKS, SHOWN, TOKEN, WIDE, browsing, drawn, error, named, open_tab

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


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
    panel.get_by_label("From the run").click()
    page.get_by_role("option").filter(has_text=SHOWN[1]).click()
    expect(named(page)).to_have_text(SHOWN[1])


def test_sentences_placement_and_copies_change_the_answer(page):
    panel = open_tab(page, "Try")
    panel.get_by_label("Sentence A").fill("baba bama")
    panel.get_by_label("Sentence B").fill("laga lara")
    panel.get_by_role("textbox", name=TOKEN).fill("!")
    panel.get_by_text("before (prefix)", exact=True).click()
    expect(page.locator("#try-answer .lead")).to_contain_text("before sentence B")
    expect(page.locator("#try-sentences")).to_contain_text("baba bama")
    copies = panel.get_by_role("spinbutton", name="Copies")
    before = int(copies.input_value())
    copies.press("ArrowUp")
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
        expect(error(page)).to_contain_text(reason)
        expect(panel.locator(".headline, .figure, table").filter(visible=True)).to_have_count(0)
        assert "Traceback" not in page.content()
        assert page.locator("img[src=x]").count() == 0
    for name, value in usual.items():  # others go on with this page
        panel.get_by_role("textbox", name=re.compile(f"^{name}")).fill(value)


def test_a_number_of_copies_that_is_refused_is_not_replaced_and_not_computed(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        panel = open_tab(page, "Try")
        sent = []
        page.on("request", lambda request: sent.append(request) if "queue/join" in request.url else None)
        for count in ("0", "33", "-1", ""):
            panel.get_by_role("spinbutton", name="Copies").fill(count)
            panel.get_by_role("button", name="Show what happens").click()
            expect(error(page)).to_contain_text(f"is {count or 'empty'}: enter a whole number from 1 to 32")
            expect(panel.locator(".headline, .figure, table").filter(visible=True)).to_have_count(0)
            assert panel.get_by_role("spinbutton", name="Copies").input_value() == count
        assert len(sent) == 4
        panel.get_by_role("spinbutton", name="Copies").fill("5")
        panel.get_by_role("button", name="Show what happens").click()
        expect(page.locator("#try-answer .headline")).to_have_text(re.compile("^5 copies"))
        expect(error(page)).to_have_count(0)
        assert heard == []


def test_a_model_without_a_run_can_be_tried(bert_page):
    assert "No run of this model is open" in bert_page.inner_text("#try-answer")
    open_tab(bert_page, "Explore")
    bert_page.get_by_text("There is no run to explore").wait_for()
    open_tab(bert_page, "Compare")
    bert_page.get_by_text("A comparison needs two runs, and there is none").wait_for()


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
