"""stickytoken check on the command line: exit statuses, formats, files, and hostile tokens."""

import json
import re
import shutil
from xml.etree import ElementTree as ET

import pytest

import planted
from hostile import assert_harmless
from stickytoken import open_run


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(planted_profile):
    return planted_profile[1]


def checked(*arguments):
    result = planted.command("check", *arguments)
    assert "Traceback" not in result.stderr
    return result


def test_the_exit_status_says_how_the_check_ended(run, small_run, tmp_path):
    assert checked(run).exit_code == 10
    assert checked(run, "--max", 99).exit_code == 0
    assert checked(run, "--baseline", run).exit_code == 0
    planted.refused("check", tmp_path / "nothing", saying="no folder")
    for wrong in (("--max", -1), ("--fail-on", "bad"), ("--format", "xml"), ("--out", "x")):
        assert checked(run, *wrong).exit_code == 2, wrong
    assert checked().exit_code == 2


def test_a_run_of_a_part_is_inconclusive(finished_run):
    result = checked(finished_run.path, "--max", 99)
    assert result.exit_code == 1
    assert result.stdout.startswith("inconclusive: ")
    assert "covered 30 of" in result.stderr


def test_every_format_says_the_same(run, sarif_schema):
    count = len(open_run(run).sticky)
    first, *rest = planted.lines_of(checked(run).stdout)
    assert re.match(r"closed: .* has \d+ sticky tokens?$", first)
    assert any(planted.PLANTED in line and "error" in line for line in rest)
    result = checked(run, "--format", "json")
    assert result.stdout.isascii()
    document = json.loads(result.stdout)
    assert (document["outcome"], document["run"]) == ("closed", str(run))
    assert document["counted"] == count == len(document["findings"])
    document = json.loads(checked(run, "--format", "sarif").stdout)
    sarif_schema.validate(document)
    assert [result["level"] for result in document["runs"][0]["results"]] == ["error"] * count
    suite = ET.fromstring(checked(run, "--format", "junit").stdout)
    assert (suite.get("failures"), suite.get("errors")) == (str(count), "0")
    *lines, last = checked(run, "--format", "github").stdout.splitlines()
    assert len([line for line in lines if line.startswith("::error ")]) == count
    assert last.startswith("closed: ")


def test_a_check_that_fails_leaves_a_document_that_says_so(sarif_schema):
    def written(output_format):
        result = checked("no/such/model/anywhere", "--format", output_format)
        assert (result.exit_code, result.stderr[:7]) == (1, "error: ")
        return result.stdout

    assert json.loads(written("json"))["outcome"] == "inconclusive"
    sarif_schema.validate(document := json.loads(written("sarif")))
    assert document["runs"][0]["invocations"][0]["executionSuccessful"] is False
    assert ET.fromstring(written("junit")).get("errors") == "1"
    assert written("github").startswith("::error ")


def test_a_document_can_go_to_a_file_beside_the_table(run, tmp_path):
    result = checked(run, "--format", "junit", "--out", "deep/results.xml")
    assert result.exit_code == 10
    assert result.stdout.startswith("closed: ")
    assert ET.fromstring((tmp_path / "deep" / "results.xml").read_bytes()).get("failures") != "0"
    (tmp_path / "file").write_text("")
    assert checked(run, "--format", "json", "--out", "file/results.json").exit_code == 1


def test_settings_of_the_project_hold_unless_an_option_says_otherwise(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.stickytoken]\nmodel = '{run}'\nmax = 99\n", "utf-8")
    assert checked().exit_code == 0
    assert checked("--max", 0).exit_code == 10
    document = json.loads(checked("--max", 0, "--format", "sarif").stdout)
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("pyproject.toml", 2)
    (tmp_path / "pyproject.toml").write_text("[tool.stickytoken]\nmax = 'many'\n", "utf-8")
    planted.refused("check", run, saying="max in .* is 'many'")


def test_findings_are_placed_in_the_repository_and_found_again_elsewhere(run, tmp_path, sarif_schema):
    shutil.copytree(run, tmp_path / "runs" / "a run [1]")
    document = json.loads(checked("runs/a run [1]", "--format", "sarif").stdout)
    sarif_schema.validate(document)
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "runs/a%20run%20%5B1%5D/tokens.parquet"
    prints = []
    for path in (run, "runs/a run [1]"):
        found = json.loads(checked(path, "--format", "json").stdout)["findings"]
        prints.append({finding["fingerprint"] for finding in found})
    assert prints[0] == prints[1]
    assert len(prints[0]) == len(open_run(run).sticky)


@pytest.mark.slow
def test_hostile_tokens_are_shown_in_every_format_and_do_nothing(hostile):
    _, run, _ = hostile
    for output_format in ("table", "json", "sarif", "junit", "github"):
        result = checked(run, "--format", output_format)
        assert result.exit_code == 10
        assert_harmless(result.stdout)
        assert_harmless(result.stderr)
