"""Documents in a check: copies of flagged tokens close the gate, and what cannot be read is no pass."""

import json

import pytest

import planted
from stickytoken.errors import InputError
from stickytoken.findings import Level
from stickytoken.gate import Outcome, check

CLEAN = ["the river opens near the market.", "a quiet bird sings in the garden."]
COPIES = f"the old stone {' '.join([planted.PLANTED] * 12)} falls."


@pytest.fixture(scope="module")
def run(planted_profile):
    return planted_profile[1]


def test_copies_of_a_flagged_token_close_the_gate_whatever_is_tolerated(run):
    clean = check(run, baseline=run, documents=[*CLEAN, "market " * 40])
    assert clean.passed
    assert clean.documents[1:] == (3, 0)
    # A repeated word without a flag is a warning.
    assert [f.level for f in clean.findings if f.rule == "document-repetition"] == [Level.WARNING]
    found = check(run, baseline=run, max_tokens=99, fail_on="severe", documents=[*CLEAN, COPIES])
    assert found.outcome is Outcome.CLOSED
    (error,) = (finding for finding in found.findings if finding.level is Level.ERROR)
    assert error.rule == "document-copies"
    assert found.documents[1:] == (3, 1)
    assert found.headline().endswith("1 of 3 documents with copies of one")


def test_documents_that_cannot_be_read_are_no_pass(run, write):
    broken = write("documents.txt", b"a quiet bird sings.\n\xff\xfe broken\nthe river opens.\n")
    found = check(run, baseline=run, documents=broken)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "1 record was skipped" in found.incomplete[0]


def test_missing_documents_are_refused_before_anything_else(run, tmp_path):
    with pytest.raises(InputError):
        check("no/such/model", documents=tmp_path / "missing.txt")
    for empty in ([], tmp_path):
        with pytest.raises(InputError):
            check(run, documents=empty)
    with pytest.raises(InputError, match="column is 'text' without documents"):
        check(run, column="text")


def test_the_command_names_file_and_line(run, write, tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        json.dumps({"id": place, "text": text}) + "\n" for place, text in enumerate([*CLEAN, COPIES])
    )
    write("documents.jsonl", rows)
    write(
        "pyproject.toml",
        f"[tool.stickytoken]\nmodel = '{run}'\nbaseline = '{run}'\ndocuments = 'documents.jsonl'\n",
    )
    result = planted.command("check", "--format", "github")
    assert result.exit_code == 10, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("::error "))
    assert line.startswith("::error file=documents.jsonl,line=3,")
    table = planted.command("check", "--column", "text")
    assert table.exit_code == 10
    assert "document-copies" in table.stdout
    planted.refused("check", "--column", "nothing", saying="nothing")
