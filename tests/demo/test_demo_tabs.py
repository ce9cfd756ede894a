"""The web app in a real browser, tab by tab and as a whole: quiet, by keyboard, on a phone, hostile."""

import re
import urllib.request

import pytest

from report_pages import violations, words_cut_off
from web_app import SHOWN, TABS, TOKEN, WIDE, browsing, drawn, error, first_cells, named, open_tab, rows

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


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


LOOKED_AT = "#explore-card .card .token"  # the token whose card is shown


def choose(page, field, text):
    field.focus()
    field.press("Control+a")
    page.keyboard.type(text)
    options = page.get_by_role("option")
    expect(options).to_have_count(1)
    expect(options).to_contain_text(text)
    field.press("ArrowDown")
    field.press("Enter")
    expect(options).to_have_count(0)


def test_the_table_is_filtered_and_a_token_shows_its_card(page):
    panel = open_tab(page, "Explore")
    expect(page.locator(LOOKED_AT).first).to_be_visible()
    everything = page.inner_text("#explore-count")
    search = panel.get_by_label("Search")
    search.fill("baba")
    expect(page.locator("#explore-count")).not_to_have_text(everything)
    first_cells(page).get_by_text("baba", exact=True).first.click()
    expect(page.locator(LOOKED_AT).first).to_have_text("baba")
    assert all("baba" in row.lower() for row in rows(page))
    search.fill("laga")
    expect(page.locator(LOOKED_AT).first).to_contain_text("laga")
    search.fill("")
    expect(page.locator("#explore-count")).to_have_text(everything)
    choose(page, panel.get_by_label("Token to show"), "laga (")
    expect(page.locator(LOOKED_AT).first).to_have_text("laga")


def settled(page, tab):
    panel = open_tab(page, tab)
    last = {"Try": ".js-plotly-plot[role=img]", "Why similar": "#why-answer .headline", "Explore": LOOKED_AT}
    expect(panel.locator(last[tab]).first).to_be_visible(timeout=60_000)
    return panel


def test_hostile_text_is_text_everywhere(browser, app):
    with browsing(browser, app, **WIDE) as (page, heard):
        for tab in TABS:
            settled(page, tab)
            text = page.locator("body").inner_text()
            assert not {"\u202e", "\x1b"} & set(text)
            assert page.locator("img[src=x], svg[onload], a[href^=javascript], [onmouseover]").count() == 0
        open_tab(page, "Explore")
        assert set(SHOWN[:4]) <= set(rows(page))
        assert heard == []


def test_the_policy_allows_no_other_host(app):
    with urllib.request.urlopen(app) as answer:
        policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy


def assert_nothing_is_cut_off(page):
    for _ in range(50):  # a picture is drawn first, and then fitted to the screen
        if not (cut_words := words_cut_off(page)):
            break
        page.wait_for_timeout(100)
    assert cut_words == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_pictures_fit_a_printed_page(browser, app):
    widths = (
        "[...document.querySelectorAll('.js-plotly-plot .main-svg')]"
        ".map(drawn => Math.round(drawn.getBoundingClientRect().width)).filter(Boolean)"
    )
    with browsing(browser, app, **WIDE) as (page, heard):
        settled(page, "Try")
        assert max(page.evaluate(widths)) > 800
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function(f"() => Math.max(...{widths}) <= 640")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.wait_for_function(f"() => Math.max(...{widths}) > 800")
        assert heard == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing_grave(browser, app, width, scheme):
    with browsing(browser, app, viewport={"width": width, "height": 844}, color_scheme=scheme) as visit:
        page, heard = visit
        for tab in TABS:
            settled(page, tab)
            assert_nothing_is_cut_off(page)
            for _ in range(5):  # what waits for an answer is dimmed, and fades in
                if not (serious_findings := violations(page)):
                    break
                page.wait_for_timeout(1000)
            assert serious_findings == []
        assert heard == []


def test_everything_can_be_reached_by_keyboard(page):
    open_tab(page, "Try")
    page.get_by_role("tab", name="Try", exact=True).focus()
    reached = {"Try"}
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent"
        reached.add(page.evaluate(focused).strip())
    for name in ("Sentence A", "Token", "Copies", "Show what happens"):
        assert any(name in address for address in reached), reached


def test_two_visitors_do_not_disturb_each_other(browser, app, page):
    with browsing(browser, app, **WIDE) as (other, heard):
        open_tab(page, "Try")
        for visitor, name in ((page, "baba"), (other, "laga")):
            visitor.locator("#try-token").get_by_role("textbox").fill(name)
        for visitor in (page, other):
            visitor.get_by_role("button", name="Show what happens").click()
        for visitor, name in ((page, "baba"), (other, "laga")):
            expect(named(visitor)).to_have_text(name)
        # The example of Why similar is computed once, and whole for both.
        titles = [
            settled(visitor, "Why similar").get_by_role("heading", level=2) for visitor in (page, other)
        ]
        expect(titles[1]).to_have_text(titles[0].all_inner_texts())
        other.reload()
        expect(named(other)).to_have_text(SHOWN[0])
        assert heard == []
