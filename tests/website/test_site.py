"""The built documentation: complete, and independent of other hosts."""

import json
import re

import pytest

import stickytoken
from build import EXAMPLES, ROOT, moved, readable
from command_reference import command_page
from report_pages import violations
from stickytoken.cli.app import app

# Pages with different contents: the entry, formulas, code in three languages, tables wider than a phone.
LOOKED_AT = ("index", "method", "ci", "models/all-MiniLM-L6-v2")


@pytest.mark.slow
def test_pages_fetch_nothing_from_other_hosts(site):
    """Dead links are found by the build."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    tags = [
        tag
        for page in pages
        for tag in re.findall(r"<(?:script|img|iframe|source|video|link)\b[^>]*>", page.read_text("utf-8"))
        if not re.search(r"\brel=.?(?:canonical|alternate|next|prev)\b", tag)
    ]
    assert len(tags) > 100
    assert [tag for tag in tags if re.search(r"\b(?:src|href)=[\"']?(?:https?:)?//", tag)] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert styles
    outside = r"""(?:url\(\s*|@import\s*)["']?(?:https?:)?//"""
    assert [text for text in styles if re.search(outside, text)] == []


def test_the_site_shows_titles_and_whole_sentences():
    sentence = "all of it, " * 12
    text = "See [repair.md](repair.md#a), [x](repair.md).\n\n"
    block = f"```console\n$ a {sentence}\n{sentence}end\n1  {sentence}\n```\n"
    page = readable(text + block, {"repair": "Repairing a model"})
    assert page.startswith("See [Repairing a model](repair.md#a), [x](repair.md).")
    assert f"$ a {sentence}\n" in page
    assert f"1  {sentence}\n" in page
    folded = page.split(f"$ a {sentence}\n")[1].split("1  ")[0]
    assert " ".join(folded.split()) == f"{sentence}end"
    assert max(map(len, folded.splitlines())) <= 96


@pytest.mark.slow
def test_formulas_are_drawn_without_a_script(site):
    html = (site / "method.html").read_text("utf-8")
    assert html.count('display="block"') >= 3
    assert "arithmatex" not in html


@pytest.mark.slow
def test_search_knows_the_terms_of_the_project(site):
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    text = " ".join(item["title"] + " " + item["text"] for item in items)
    terms = ("sticky", "severity", "contraction", "[CLS]", "smallest-push", *stickytoken.__all__)
    assert [term for term in terms if term not in text] == []


@pytest.mark.slow
def test_the_reference_has_every_public_name_with_its_docstring(site):
    html = (site / "reference" / "python.html").read_text("utf-8")
    for name in set(stickytoken.__all__) - {"__version__"}:
        public_object = getattr(stickytoken, name)
        assert f'id="{public_object.__module__}.{public_object.__qualname__}"' in html
        first = re.split(r"[`*<&\n]", public_object.__doc__.strip())[0].strip()
        assert first in html, name


def test_the_reference_of_commands_has_every_command_and_option():
    page = command_page()
    for command in app.registered_commands:
        assert f"## stickytoken {command.name or command.callback.__name__}\n" in page
    assert "| `--sample` | number |" in page
    assert "| `smallest-push` | number |" in page
    assert "`profile`, `std`" in page


def test_links_of_the_readme_lead_to_pages_and_code_is_left_alone():
    rest = " [c](https://example.org/docs/x)\n```\n[d](docs/e)\n```\n"
    page = moved(f"[a](docs/usage.md#python) [b](CHANGELOG.md){rest}")
    assert page == f"[a](usage.md#python) [b](changelog.md){rest}"


def test_every_page_is_in_the_menu():
    menu = (ROOT / "website" / "mkdocs.yml").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in menu] == []


@pytest.mark.slow
def test_pictures_of_the_gallery_lead_to_reports_that_the_site_has(site):
    targets = re.findall(r'<a href="(examples/[^"]+)"', (site / "report.html").read_text("utf-8"))
    assert targets == ["examples/all-MiniLM-L6-v2.html", "examples/tampered.html"]
    for run in EXAMPLES.iterdir():
        html = (site / "examples" / f"{run.name}.html").read_text("utf-8")
        assert '<article class="card sticky">' in html
        assert str(ROOT) not in html


@pytest.mark.slow
def test_on_a_phone_code_wraps_and_columns_scroll(site, browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    wide = "[...document.querySelectorAll('pre > code')].filter(each => each.scrollWidth > each.clientWidth)"
    for name in ("tutorial.html", "index.html"):
        page.goto((site / name).as_uri())
        page.wait_for_selector("pre > code.scrolls")
        columns = page.evaluate(f"{wide}.map(each => each.textContent)")
        assert columns
        assert all("  " in column for column in columns)
    page.close()


@pytest.mark.slow
def test_search_answers_in_a_browser_without_a_server(site, browser):
    page = browser.new_page()
    heard = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("request", lambda request: heard.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("severity")
    page.get_by_text("at which a token counts against the model").first.wait_for()
    assert [message for message in heard if not message.startswith("file:")] == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_pages_are_accessible(site, browser, width, scheme):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    all_findings = []
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        all_findings += [f"{name}: {line}" for line in violations(page)]
    page.close()
    assert all_findings == []
