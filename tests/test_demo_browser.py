"""The web app as a whole in a real browser: quiet, by keyboard, on a phone, hostile."""

import urllib.request
from urllib.parse import urlsplit

import pytest

from served import SHOWN, TABS, WIDE, browsing, named, open_tab, rows

pytest.importorskip("gradio", reason="gradio is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

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
