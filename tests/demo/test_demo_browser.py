"""The web app as a whole in a real browser: quiet, by keyboard, on a phone, hostile."""

import urllib.request
from urllib.parse import urlsplit

import pytest

import accessibility
from report_pages import words_cut_off
from web_app import SHOWN, TABS, WIDE, browsing, named, open_tab, rows

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


def settled(page, tab):
    """Open a tab, and wait until all of it is there."""
    panel = open_tab(page, tab)
    if tab == "Explain":
        expect(page.locator("#explain-answer .headline")).to_be_visible(timeout=60_000)
    if tab == "Why":
        expect(panel.locator("#why-answer .headline")).to_be_visible(timeout=60_000)
    elif tab == "Repair":  # no repair is open
        expect(panel.locator("#repair-answer")).to_be_visible()
    else:
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


def assert_nothing_is_cut_off(page):
    """The page is no wider than the screen, and all words of its pictures can be read."""
    for _ in range(50):  # a picture is drawn first, and then fitted to the screen
        if not (found := words_cut_off(page)):
            break
        page.wait_for_timeout(100)
    assert found == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_pictures_fit_a_printed_page(browser, app):
    widths = (
        "[...document.querySelectorAll('.js-plotly-plot .main-svg')]"
        ".map(drawn => Math.round(drawn.getBoundingClientRect().width)).filter(Boolean)"
    )
    with browsing(browser, app, **WIDE) as (page, heard):
        settled(page, "Explore")
        before = page.evaluate(widths)
        assert max(before) > 800
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
                if not (found := accessibility.violations(page)):
                    break
                page.wait_for_timeout(1000)
            assert found == []
        assert heard == []


def test_all_pictures_of_an_explanation_fit_a_phone(browser, bert_app):
    with browsing(browser, bert_app, viewport={"width": 390, "height": 844}) as (page, heard):
        panel = settled(page, "Explain")
        panel.get_by_label("Attribution").check()
        panel.get_by_role("button", name="Explain").click()
        heading = panel.get_by_role("heading", name="One pair's similarity, token by token")
        expect(heading).to_be_visible()
        page.wait_for_function(
            "[...document.querySelectorAll('.js-plotly-plot')].filter(each => each.offsetParent).length >= 7"
        )
        assert_nothing_is_cut_off(page)
        # Gradio measures its tabs by copies that nobody sees and that take no focus.
        boxes = page.locator("input:visible, button:visible:not([tabindex='-1'])").evaluate_all(
            "all => all.filter(each => each.getBoundingClientRect().right > innerWidth)"
            ".map(each => each.outerHTML.slice(0, 200))"
        )
        assert boxes == []
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
        # The example of Explain is computed once, and whole for both.
        titles = [settled(visitor, "Explain").get_by_role("heading", level=3) for visitor in (page, other)]
        expect(titles[1]).to_have_text(titles[0].all_inner_texts())
        other.reload()
        expect(named(other)).to_have_text(SHOWN[0])
        assert heard == []
