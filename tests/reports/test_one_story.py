"""Report, explanation and web app of one run make the same claims with the same numbers."""

import json
import re

import pytest

import planted
import profiled
import stickytoken
import web_app
from naming import says
from report_pages import Page
from stickytoken import load_encoder
from stickytoken.demo.context import Startup, find_runs
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.methods import wording
from stickytoken.reports.content import read_content

pytestmark = pytest.mark.slow

ORDINARY = "?"
EXPLAINED = ExplainSettings(carriers=20, attribution=False, directions=16)
# No text about a token that the run calls sticky may say so.
DENIALS = re.compile(
    r"no more than (its |the )?(benign|match)|no significant difference|not sticky|cost less"
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run that found one planted token, explained beside an ordinary one."""
    folder = tmp_path_factory.mktemp("story")
    encoder = load_encoder(profiled.planted_model(2))
    # The typical pair has 8 copies, as the text below says of the token.
    run = profiled.detect_in_documents(encoder, folder / "run", copies=(8,))
    assert run.sticky["token"].to_list() == [planted.PLANTED]
    assert run.tokens.filter(token=ORDINARY)["verdict"].to_list() == ["benign"]
    explain(encoder, [planted.PLANTED, ORDINARY], run=run, settings=EXPLAINED, out=run.path / "explain")
    return run


@pytest.fixture(scope="module")
def content(told):
    return read_content(told.path)


@pytest.fixture(scope="module")
def documents(told):
    html, markdown = (stickytoken.report(told.path, format=name) for name in ("html", "md"))
    return {
        "html": " ".join(Page(html).text.split()),
        "md": markdown.replace("\\", ""),
        "json": json.loads(stickytoken.report(told.path, format="json")),
    }


@pytest.fixture(scope="module")
def row(told):
    return told.sticky.row(0, named=True)


def explained(content, token):
    return next(explanation for explanation in content.explanations if explanation.token.token == token)


def test_verdict_severity_and_both_measures_are_the_same_everywhere(content, documents, row):
    document = documents["json"]
    page = documents["html"]
    text = documents["md"]
    names = {"verdict", "severity", "reason"}
    names |= {f"{measure}{end}" for measure in ("erased", "push") for end in ("", "_low", "_high")}
    for text_form in (document["worst"][0], document["flagged"][0]):
        assert text_form["token"] == planted.PLANTED
        assert {name: text_form[name] for name in names} == {name: row[name] for name in names}
    assert document["headline"] in page
    assert document["headline"] in text
    erased = wording.ERASED.text(row["erased"])
    push = wording.PUSH.text(row["push"])
    for text_form in (page, text):
        assert row["reason"] in text_form
        assert f"erased {erased}" in text_form.replace(":", "")
        assert f"push {push}" in text_form.replace(":", "")
        for sentence in document["worst"][0]["consequences"]:
            assert sentence in text_form
    assert f"### {planted.PLANTED}: sticky, {row['severity']}" in text
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {planted.PLANTED} | sticky |")]
    assert {row["severity"], erased, push} <= {cell.strip() for cell in line.split("|")}


def test_the_explanation_repeats_the_verdict_of_the_run(content, documents, row):
    verdict = explained(content, planted.PLANTED).token.verdict
    assert says(verdict, "sticky", row["severity"])
    assert verdict in documents["html"]


def test_the_web_app_shows_the_numbers_of_the_report(content, row):
    library = find_runs([content.run.path], content.run.path, [])
    narrow = web_app.event_of(Startup("model", library), "change", *web_app.FILTERS)
    _, table, _ = narrow(library.labels[0], "", [], [], [])
    first_row, *rows = [dict(zip(table["headers"], cells, strict=True)) for cells in table["data"]]
    cells = [first_row[name] for name in ("token", "verdict", "severity", "erased", "push")]
    numbers = [round(row["erased"], 2), round(row["push"], 1)]
    assert cells == [planted.PLANTED, "sticky", row["severity"], *numbers]
    assert {(other["verdict"], other["severity"]) for other in rows} == {("benign", "–")}


def test_nothing_denies_what_the_run_calls_sticky(told, content, documents):
    texts = [documents["html"], documents["md"], json.dumps(documents["json"])]
    texts += [explanation.token.verdict for explanation in content.explanations]
    assert len(texts) == 3 + 2
    for text in texts:
        assert not DENIALS.search(text), DENIALS.search(text)
    verdict = explained(content, planted.PLANTED).token.verdict
    assert "the run's verdict rests on other measures" in verdict


def test_an_unflagged_token_is_called_sticky_nowhere(content, documents):
    explanation = next(
        candidate for candidate in documents["json"]["explanations"] if candidate["token"] == ORDINARY
    )
    assert explanation["run_verdict"] == "benign"
    assert f"{ORDINARY!r} (" in explanation["verdict"]
    assert "the run calls it benign: " in explanation["verdict"]
    for words in (
        explanation["verdict"],
        explanation["basis"],
        *explanation["findings"],
        *explanation["notes"],
    ):
        assert "sticky" not in words
        assert not re.search("severe|serious|mild|negligible", words)
    assert {flagged_row["verdict"] for flagged_row in documents["json"]["flagged"]} == {"sticky"}
    assert {flagged_row["token"] for flagged_row in documents["json"]["flagged"]} == {planted.PLANTED}
