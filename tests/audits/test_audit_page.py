"""The page of an audit, and its part of the report of the run."""

import json
import shutil

import polars as pl
import pytest

import scanned
from audited import with_verdicts, without_copies
from hostile import assert_harmless
from naming import says
from report_pages import GRAVE, Page, opened, violations
from stickytoken import report
from stickytoken.audits import open_audit, wording
from stickytoken.reports.page import audit_page
from stickytoken.validation import visible


def test_the_report_of_the_run_shows_the_audit(finished, tampered_run, tmp_path):
    # A report shows only the latest audits, and other tests make some of this run.
    others = [path.name for path in tampered_run.glob("audit-*") if path.name != finished.path.name]
    run = shutil.copytree(tampered_run, tmp_path / "run", ignore=shutil.ignore_patterns(*others))
    markdown = report(run, format="md")
    html = report(run, format="html")
    document = json.loads(report(run, format="json"))
    (shown,) = document["audits"]
    assert shown["conclusions"] == wording.conclusions(finished)
    assert shown["basis"] == wording.basis(finished)
    assert "## Search results with copies" in markdown
    assert '<h2 id="results">Search results with copies' in html
    assert shown["tokens"]["rows"][0][0] == scanned.STICKY
    assert shown["answer"]["sentence"] == wording.answer(finished).sentence
    assert wording.done(finished) in html


HEADINGS = [
    "affected by sticky tokens?",
    "Which words?",
    "Which documents?",
    "What was done?",
    "What is left to do?",
    "What does this not say?",
]


def test_the_page_of_an_affected_index_answers_in_order(finished):
    html = audit_page(finished)
    page = Page(html)
    positions = [page.text.index(heading) for heading in HEADINGS]
    assert positions == sorted(positions)
    assert "Yes. " in page.text
    assert scanned.STICKY in page.tokens
    assert page.tags.count("mark") >= len(finished.documents) == 4
    assert all(document_id in page.text for document_id in finished.documents["id"])
    assert says(page.text, "90%")
    assert all(step.command in page.text for step in wording.next_steps(finished))
    addresses = [value for _, name, value in page.attributes if name in ("src", "href")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "://" not in html


def test_the_page_of_an_unaffected_index_says_no(finished):
    page = Page(audit_page(without_copies(with_verdicts(finished, group=pl.lit("random")))))
    positions = [page.text.index(heading) for heading in HEADINGS]
    assert positions == sorted(positions)
    assert "No. " in page.text
    assert "Yes" not in page.text
    assert "mark" not in page.tags
    assert "stickytoken repair" not in page.text


EVIL = "<img src=x onerror=alert(1)>\u202e</script>ذ{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def hostile_page(finished):
    """The page of an audit in which every text is hostile."""
    hostile = open_audit(finished.path)
    hostile.tokens = hostile.tokens.with_columns(token=pl.lit(EVIL), text=pl.lit(EVIL))
    change = {"query": EVIL, "rank": 1, "rank_without": 20}
    rows = [
        row | {"excerpt": [{"text": EVIL, "found": found} for found in (True, False)], "entered": [change]}
        for row in hostile.documents.iter_rows(named=True)
    ]
    table = pl.DataFrame(rows, hostile.documents.schema)
    hostile.documents = table.with_columns(id=pl.lit(EVIL), found=pl.lit(EVIL), causes=pl.lit(EVIL))
    index = hostile.record.index.model_copy(update={"name": EVIL, "queries_from": EVIL})
    hostile.record = hostile.record.model_copy(
        update={"model": EVIL, "index": index, "documents": EVIL, "run": EVIL, "notes": [EVIL]}
    )
    return audit_page(hostile)


def test_hostile_text_is_text_in_the_page(hostile_page):
    assert_harmless(hostile_page)
    page = Page(hostile_page)
    assert {"img", "iframe"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 2
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(visible(EVIL)) > 10
    # Right-to-left letters are isolated, because they would turn around the numbers after them.
    assert "copies of &#39;&lt;img" in hostile_page
    assert "&lt;/script&gt;<bdi>ذ</bdi>{{" in hostile_page


@pytest.mark.parametrize("name", ["affected", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_in_a_browser_the_page_is_quiet_and_fits(
    browser, finished, hostile_page, name, width, scheme, tmp_path
):
    path = tmp_path / "audit.html"
    path.write_text(audit_page(finished) if name == "affected" else hostile_page, "utf-8")
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with opened(browser, path, **options) as (page, heard):
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator(".headline").bounding_box()["y"] < 800
        assert violations(page, ("minor", "moderate", *GRAVE)) == []
        assert heard == []
