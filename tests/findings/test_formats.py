"""Findings in every format: what is said, what a reader finds again, and what hostile text cannot do."""

import json
import random
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit
from xml.etree import ElementTree as ET

import pytest
from sarif_kit import normalize_uri

from hostile import HOSTILE, assert_harmless
from naming import says
from stickytoken.findings import (
    Finding,
    Level,
    Rule,
    github_annotations,
    junit,
    place_of,
    repository_path,
    sarif,
)
from stickytoken.validation import visible

RULES = (
    Rule("sticky-token", "No token is sticky", "Sticky tokens pull texts. Repair them.", Level.ERROR),
    Rule("copies", "No document repeats a word", "Copies pull a document. Clean it.", Level.WARNING),
)
FINDING = Finding(
    "sticky-token",
    Level.ERROR,
    "'evil' is sticky",
    "runs/mini/tokens.parquet",
    identity=("weights", "evil"),
    properties={"token_id": 7, "lift": 0.25, "interval": [0.2, None]},
)
PIECES = (
    *HOSTILE, "](http://evil)", "[a](http://evil)", "{0}", "{", "}", "%0A::error::x", "::stop-commands::x",
    "##[error]x", "a,file=b", "]]>", "<!--", "&amp;", "<!DOCTYPE x>", "\\", "\\[", "\ud800", "\udcff",
    "\ufffe", "\uffff", "\x85", "=cmd", "../..", "a:b", "?q", "#f", " ", "C:\\x", "//host",
)  # fmt: skip
# 300 texts made of the pieces, each piece alone among them.
RANDOM = random.Random(0)
MIXED = ("".join(RANDOM.choices(PIECES, k=RANDOM.randint(2, 5))) for _ in range(300 - len(PIECES)))
HOSTILE_TEXTS = (*PIECES, *MIXED)
HOSTILE_FINDINGS = [
    Finding("sticky-token", Level.ERROR, f"{text} is sticky", f"docs/{text}", 3, (text,), {"token": text})
    for text in HOSTILE_TEXTS
]


def read_plain_text(text):
    """The links that a reader of SARIF finds in a message, and the text that it shows (3.11.5, 3.11.6)."""
    assert not re.search(r"(?<!\{)\{\d+\}(?!\})", text)
    links = re.findall(r"(?<!\\)\[(?:[^\\\]]|\\.)*\]\([^)]*\)", re.sub(r"\\\\", "", text))
    if "](" in text or "\\]" in text:
        text = re.sub(r"\\([\\\[\]])", r"\1", text)
    return links, text.replace("{{", "{").replace("}}", "}")


def assert_accepted_by_github(document):
    """Check what GitHub's page "SARIF support for code scanning" asks for beyond the schema."""
    assert document["version"] == "2.1.0"
    assert "sarif-schema-2.1.0" in document["$schema"]
    assert 1 <= len(document["runs"]) <= 20
    for run in document["runs"]:
        driver = run["tool"]["driver"]
        assert driver["name"]
        rules = {rule["id"]: rule for rule in driver["rules"]}
        for rule in rules.values():
            assert len(rule["name"]) <= 255
            assert 0 < len(rule["shortDescription"]["text"]) <= 1024
            assert 0 < len(rule["fullDescription"]["text"]) <= 1024
            assert rule["help"]["text"]
        assert len(run["results"]) <= 25_000
        for result in run["results"]:
            assert result["ruleId"] in rules
            assert result["message"]["text"]
            assert result["partialFingerprints"]["primaryLocationLineHash"]
            assert 1 <= len(result["locations"]) <= 1000
            location = result["locations"][0]["physicalLocation"]
            assert location["region"]["startLine"] >= 1
            # Relative to the root: no scheme, no host, no leading slash, no way out.
            uri = location["artifactLocation"]["uri"]
            assert normalize_uri(uri) == uri
            url = urlsplit(uri)
            assert (url.scheme, url.netloc, url.query, url.fragment) == ("", "", "", "")
            assert not {"", ".", ".."} & set(url.path.split("/"))


PLACES = [
    (("docs/a.txt", None), ("docs/a.txt", "SRCROOT")),
    ((None, "/tmp/own docs/a.txt"), ("tmp/own%20docs/a.txt", "FILESYSTEM")),
    ((None, "C:/own docs/a.txt"), ("C%3A/own%20docs/a.txt", "FILESYSTEM")),
    ((None, "stdin"), ("stdin", "SRCROOT")),
    ((None, None), ("pyproject.toml", "SRCROOT")),
]


@pytest.mark.parametrize(("given", "expected"), PLACES)
def test_every_result_has_a_place_that_github_accepts(sarif_schema, given, expected):
    path, outside = given
    finding = Finding("copies", Level.WARNING, "x", path, 3, outside=outside)
    document = sarif([finding], RULES, "1")
    sarif_schema.validate(document)
    assert_accepted_by_github(document)
    location = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["artifactLocation"]["uriBaseId"]) == expected
    assert location["region"] == {"startLine": 3}


def test_more_results_than_github_takes_are_left_out_mildest_first():
    findings = [Finding("copies", Level.NOTE, "mild")] * 20_000 + [FINDING] * 10_000
    document = sarif(findings, RULES, "1")
    assert_accepted_by_github(document)
    (run,) = document["runs"]
    levels = [result["level"] for result in run["results"]]
    assert (levels.count("error"), levels.count("note")) == (10_000, 15_000)
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert says(notification["message"]["text"], "5,000")


def test_a_file_outside_the_repository_is_named_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    assert place_of(Path("docs/a.txt")) == ("docs/a.txt", None)
    assert place_of(Path("../other.txt")) == (None, str(tmp_path.resolve() / "other.txt"))


def test_sarif_is_valid_and_says_what_was_found(sarif_schema):
    document = sarif([FINDING, Finding("copies", Level.NOTE, "x", identity=("a", "b"))], RULES, "1.2.3")
    sarif_schema.validate(document)
    (run,) = document["runs"]
    result, without_file = run["results"]
    assert without_file["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "pyproject.toml", "uriBaseId": "SRCROOT"},
                "region": {"startLine": 1},
            },
            "logicalLocations": [{"fullyQualifiedName": "a/b"}],
        }
    ]
    assert result["ruleId"] == run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "sticky-token"
    assert result["message"]["text"] == "'evil' is sticky"
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "runs/mini/tokens.parquet", "uriBaseId": "SRCROOT"}
    assert result["properties"] == {"token_id": 7, "lift": 0.25, "interval": [0.2, None]}
    assert run["invocations"] == [{"executionSuccessful": True}]


@pytest.mark.parametrize("incomplete", [[], ["the run is not finished"]])
def test_without_findings_a_check_has_passed_only_if_it_is_complete(sarif_schema, incomplete):
    sarif_schema.validate(document := sarif([], RULES, "1.2.3", incomplete))
    (run,) = document["runs"]
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is not bool(incomplete)
    suite = ET.fromstring(junit([], RULES, "mini", incomplete))
    assert [suite.get(name) for name in ("tests", "failures")] == ["1" if incomplete else "2", "0"]
    assert suite.get("errors") == str(len(incomplete))
    assert [line.split(" ")[0] for line in github_annotations([], incomplete)] == ["::error"] * bool(
        incomplete
    )


def test_notes_are_told_and_fail_nothing(sarif_schema):
    document = sarif([], RULES, "1.2.3", notes=["30 tokens were measured"])
    sarif_schema.validate(document)
    invocation = document["runs"][0]["invocations"][0]
    assert invocation["executionSuccessful"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert (notification["level"], notification["message"]["text"]) == ("note", "30 tokens were measured")
    suite = ET.fromstring(junit([], RULES, "mini", notes=["30 tokens\x1b", "a second"]))
    assert suite.get("failures") == suite.get("errors") == "0"
    assert [output.text for output in suite.iter("system-out")] == ["30 tokens\\x1b\na second"]


def test_only_errors_fail_in_junit():
    notes = [Finding("copies", level, f"a {level.value}") for level in Level]
    suite = ET.fromstring(junit(notes, RULES, "mini"))
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
    named = {case.get("classname") for case in suite.iter("testcase")}
    assert named == {"stickytoken.sticky-token", "stickytoken.copies"}


def test_annotations_name_the_place_and_the_level():
    copies = Finding("copies", Level.WARNING, "20 copies", "docs/a.txt", 9)
    findings_found = [FINDING, copies, Finding("copies", Level.NOTE, "read")]
    assert list(github_annotations(findings_found)) == [
        "::error file=runs/mini/tokens.parquet,line=1,title=stickytoken%3A sticky-token::'evil' is sticky",
        "::warning file=docs/a.txt,line=9,title=stickytoken%3A copies::20 copies",
        "::notice title=stickytoken%3A copies::read",
    ]


def test_the_fingerprint_depends_on_the_identity_alone():
    def prints(rule="copies", level=Level.ERROR, message="x", path=None, identity=("m", "t")):
        return Finding(rule, level, message, path, identity=identity).fingerprint

    assert prints() == prints(level=Level.NOTE, message="y", path="a.txt")
    assert len({prints(), prints("other"), prints(identity=("m", "u")), prints(identity=("mt",))}) == 4


def test_results_with_one_fingerprint_are_numbered_in_their_order():
    same_id = [Finding("copies", Level.WARNING, message, identity=("m", "7")) for message in ("x", "y", "z")]
    other = Finding("copies", Level.WARNING, "x", identity=("m", "8"))
    (run,) = sarif([same_id[0], other, *same_id[1:]], RULES, "1")["runs"]
    hashes = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    first, second = same_id[0].fingerprint, other.fingerprint
    assert hashes == [f"{first}:1", f"{second}:1", f"{first}:2", f"{first}:3"]


def test_sarif_of_hostile_text_is_valid_and_holds_no_link_and_no_placeholder(sarif_schema):
    document = json.loads(json.dumps(sarif(HOSTILE_FINDINGS, RULES, "1", HOSTILE_TEXTS)))
    sarif_schema.validate(document)
    for text, result in zip(HOSTILE_TEXTS, document["runs"][0]["results"], strict=True):
        message = result["message"]["text"]
        assert_harmless(message)
        assert read_plain_text(message) == ([], visible(f"{text} is sticky"))
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"docs/[A-Za-z0-9._~/%-]*", uri)
        assert_harmless(result["properties"]["token"])


def test_junit_of_hostile_text_is_one_document_with_the_same_tests():
    root = ET.fromstring(junit(HOSTILE_FINDINGS, RULES, "".join(PIECES), HOSTILE_TEXTS).encode("utf-8"))
    cases = root.findall("./testsuite/testcase")
    assert len(cases) == 600
    assert {child.tag for case in cases for child in case} == {"failure", "error"}
    for text in root.itertext():
        assert_harmless(text)


def test_an_annotation_of_hostile_text_is_one_command_on_one_line():
    lines = list(github_annotations(HOSTILE_FINDINGS, HOSTILE_TEXTS))
    assert len(lines) == 600
    for line in lines:
        assert_harmless(line)
        command = re.fullmatch(r"::error ((?:file=[^:,]*,line=3,)?title=[^:,]*)::(.*)", line)
        assert command
        # GitHub decodes %25, %0D, %0A, %3A and %2C; nothing here decodes to a new line.
        assert not re.search(r"%(?!25|3A|2C)", command[1])
        assert not re.search(r"%(?!25)", command[2])


@pytest.mark.parametrize("name", ["a b.txt", "é/中.txt", "a:b", "100%.txt", "a?b#c", "[x](y)", "\udcff.txt"])
def test_a_relative_uri_gives_the_name_of_the_file_back(name):
    (result,) = sarif([Finding("copies", Level.NOTE, "x", name)], RULES, "1")["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", uri)
    assert unquote_to_bytes(uri).decode("utf-8", "surrogateescape") == name


def test_a_path_is_relative_to_the_nearest_folder_with_git_or_none_outside(tmp_path, monkeypatch):
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    # In a work tree, a file stands in place of the folder.
    (root / ".git").write_text("gitdir: elsewhere")
    (root / "link").symlink_to(tmp_path)
    for here in (root, root / "docs"):
        monkeypatch.chdir(here)
        assert repository_path(root / "docs" / ".." / "runs" / "a.txt") == "runs/a.txt"
        for outside in (tmp_path / "other.txt", root, root / "link" / "a.txt"):
            assert repository_path(outside) is None
