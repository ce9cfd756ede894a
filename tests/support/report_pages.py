"""Pages as a reader's programs see them: parsed, in a real browser, and judged by axe-core."""

import json
import shutil
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

# Elements that hold no text of the page.
_SILENT = {"script", "style"}
_VOID = {"meta", "link", "input", "br", "line", "rect"}


class Page(HTMLParser):
    """A report read by a parser that is not ours."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags = []
        self.attributes = []
        self.tokens = []
        self.text = ""
        self._open = []
        self._raw = {}
        self.feed(html)
        self.close()
        self.data = json.loads(self._raw.get("report-data", "null"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in _VOID:
            self._open.append((tag, dict(attrs)))
        if self._is_token():
            self.tokens.append("")

    def handle_endtag(self, tag):
        if tag in _VOID:
            return
        assert self._open[-1][0] == tag, (tag, self._open)
        self._open.pop()

    def handle_data(self, data):
        if not self._open:
            return
        tag, attrs = self._open[-1]
        if tag in _SILENT:
            self._raw[attrs.get("id", tag)] = data
            return
        self.text += data
        if self._is_token():
            self.tokens[-1] += data

    def _is_token(self):
        return bool(self._open) and "token" in str(self._open[-1][1].get("class", "")).split()


@contextmanager
def started_browser():
    """A headless Chromium, Debian's or another; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None) or pytest.skip("there is no Chromium")
    playwright.expect.set_options(timeout=60_000)  # a busy machine is no defect
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, path, **options):
    context = browser.new_context(**options)
    page = context.new_page()
    heard = []
    address = Path(path).resolve().as_uri()
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: heard.append(f"request: {request.url}"))
    page.goto(address)
    assert heard.pop(0) == f"request: {address}"
    yield page, heard
    context.close()


def wait_for_plots(page):
    """Open the parts that are closed, and wait until all pictures are drawn."""
    page.evaluate("document.querySelectorAll('details.part').forEach(part => { part.open = true; })")
    wait_until(
        page, "[...document.querySelectorAll('[data-figure]')].every(plot => plot.querySelector('.main-svg'))"
    )


def words_cut_off(page):
    """Words of pictures that are shown and begin or end outside of them, with the picture's name."""
    return page.evaluate(
        """[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
            const own = plot.getBoundingClientRect();
            return [...plot.querySelectorAll('.main-svg text')].filter(text => {
                const place = text.getBoundingClientRect();
                return place.width && (place.left < own.left - 1 || place.right > own.right + 1
                    || place.top < own.top - 1 || place.bottom > own.bottom + 1);
            }).map(text => `${plot.ariaLabel?.slice(0, 40)}: ${text.textContent}`);
        })"""
    )


def wait_until(page, condition):
    """Wait until an expression is true; the page's policy forbids the browser to poll it by itself."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


GRAVE = ("serious", "critical")


@cache
def _axe():
    spec = find_spec("axe_playwright_python")  # https://github.com/dequelabs/axe-core
    if spec is None:
        pytest.skip("axe-playwright-python, which ships axe-core, is not installed")
    return Path(spec.origin).with_name("axe.min.js").read_text("utf-8")


def violations(page, impacts=GRAVE):
    """One line for each element of an open page that breaks a rule of these impacts."""
    page.evaluate(_axe())
    findings = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['impact']} {rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in findings["violations"]
        if rule["impact"] in impacts
        for node in rule["nodes"]
    ]
