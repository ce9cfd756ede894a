"""The built documentation: complete, without dead links, and independent of other hosts."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import accessibility
import stickytoken
from build import EXAMPLES, ROOT, moved, readable
from command_reference import command_page
from stickytoken.cli.app import app

# Elements that a browser fetches without being asked, and the attribute that says what.
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
_FETCHING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s*)["']?((?:https?:)?//[^"')]+)""")


class BuiltPage(HTMLParser):
    """One page of the site."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.path, self.anchors, self.links, self.fetched = path, set(), [], []
        self.feed(path.read_text("utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        place = given.get(_FETCHED.get(tag, ""))
        if place and (tag != "link" or _FETCHING_LINKS & set(given.get("rel", "").split())):
            self.fetched.append(place)


def pages_of(site):
    return {path: BuiltPage(path) for path in sorted(Path(site).rglob("*.html"))}


def dead_links(pages):
    """Every link or fetched file of the pages that leads nowhere: page and target."""
    dead = []
    for page in pages.values():
        if page.path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for target in page.links + page.fetched:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            known = pages.get(path)
            anchor = unquote(parts.fragment)
            missing = not path.is_file() or (known and anchor and anchor not in known.anchors)
            dead += [f"{page.path.name}: {target}"] if missing else []
    return dead


def outside(site, pages):
    """Everything that opening a page would fetch from another host."""
    found = [
        f"{page.path.name}: {target}"
        for page in pages.values()
        for target in page.fetched
        if urlsplit(target).netloc
    ]
    return found + [
        f"{path.name}: {target}"
        for path in Path(site).rglob("*.css")
        for target in _IN_STYLE.findall(path.read_text("utf-8"))
    ]


# Pages with different contents: the entry, formulas, code in three languages, tables wider than a phone.
LOOKED_AT = ("index", "method", "ci", "models/all-MiniLM-L6-v2")


@pytest.mark.slow
def test_the_site_has_no_dead_link_or_anchor(site):
    pages = pages_of(site)
    assert len(pages) > 25
    assert dead_links(pages) == []


def test_a_dead_link_would_be_found(tmp_path):
    for name, text in (("a.html", "<a href='b.html#x'>b</a><img src='c.png'>"), ("b.html", "<p id='y'>")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert dead_links(pages_of(tmp_path)) == ["a.html: b.html#x", "a.html: c.png"]


def test_the_site_shows_titles_and_whole_sentences():
    said = "all of it, " * 12
    text = (
        f"See [repair.md](repair.md#a), [x](repair.md).\n\n"
        f"```console\n$ a {said}\n{said}end\n1  {said}\n```\n"
    )
    found = readable(text, {"repair": "Repairing a model"})
    assert found.startswith("See [Repairing a model](repair.md#a), [x](repair.md).")
    assert f"$ a {said}\n" in found
    assert f"1  {said}\n" in found
    folded = found.split(f"$ a {said}\n")[1].split("1  ")[0]
    assert " ".join(folded.split()) == f"{said}end"
    assert max(map(len, folded.splitlines())) <= 96


@pytest.mark.slow
def test_pages_fetch_nothing_from_other_hosts(site):
    assert outside(site, pages_of(site)) == []


@pytest.mark.slow
def test_formulas_are_drawn_without_a_script(site):
    html = (site / "method.html").read_text("utf-8")
    assert html.count('display="block"') >= 3
    assert "arithmatex" not in html


@pytest.mark.slow
def test_search_knows_the_terms_of_the_project(site):
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    text = " ".join(item["title"] + " " + item["text"] for item in items)
    for term in (
        "sticky",
        "severity",
        "contraction",
        "judge",
        "[CLS]",
        "smallest-effect",
        *stickytoken.__all__,
    ):
        assert term in text, term


@pytest.mark.slow
def test_the_reference_has_every_public_name_with_its_docstring(site):
    html = (site / "reference" / "python.html").read_text("utf-8")
    for name in set(stickytoken.__all__) - {"__version__"}:
        found = getattr(stickytoken, name)
        assert f'id="{found.__module__}.{found.__qualname__}"' in html
        first = re.split(r"[`*<&\n]", found.__doc__.strip())[0].strip()
        assert first in html, name


def test_the_reference_of_commands_has_every_command_and_option():
    page = command_page()
    for command in app.registered_commands:
        assert f"## stickytoken {command.name or command.callback.__name__}\n" in page
    assert "| `--sample` | number |" in page
    assert "| `smallest-effect` | number |" in page
    assert "`profile`, `std`" in page


def test_links_of_the_readme_lead_to_pages_and_code_is_left_alone():
    text = (
        "[a](docs/usage.md#python) [b](CHANGELOG.md) [c](https://example.org/docs/x)\n```\n[d](docs/e)\n```\n"
    )
    assert moved(text) == (
        "[a](usage.md#python) [b](changelog.md) [c](https://example.org/docs/x)\n```\n[d](docs/e)\n```\n"
    )


def test_every_page_is_in_the_menu():
    menu = (ROOT / "website" / "mkdocs.yml").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in menu] == []


@pytest.mark.slow
def test_pictures_of_the_gallery_lead_to_reports_that_the_site_has(site):
    targets = re.findall(r'<a href="(examples/[^"]+)"', (site / "report.html").read_text("utf-8"))
    assert targets == [f"examples/{name}" for name in (
        "all-MiniLM-L6-v2.html", "tampered.html", "tampered.html#repair"
    )]  # fmt: skip
    for run in EXAMPLES.iterdir():
        html = (site / "examples" / f"{run.name}.html").read_text("utf-8")
        assert "Why they are flagged" in html
        assert str(ROOT) not in html


@pytest.mark.slow
def test_on_a_phone_code_wraps_and_columns_scroll(site, browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    wide = "[...document.querySelectorAll('pre > code')].filter(each => each.scrollWidth > each.clientWidth)"
    page.goto((site / "tutorial.html").as_uri())
    assert page.evaluate(f"{wide}.length") == 0
    page.goto((site / "index.html").as_uri())
    columns = page.evaluate(f"{wide}.map(each => each.textContent)")
    assert columns
    assert all("  " in each for each in columns)
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
    page.get_by_text("Severity says how much further").first.wait_for()
    assert [each for each in heard if not each.startswith("file:")] == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_pages_are_accessible(site, browser, width, scheme):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    found = []
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        found += [f"{name}: {line}" for line in accessibility.violations(page)]
    page.close()
    assert found == []
