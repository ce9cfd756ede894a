"""stickytoken check on the command line, with documents, and as docs/ci.md says to run it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

import planted
import profiled
from hostile import assert_harmless
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.cleaning import Cleaner, CleaningRules
from stickytoken.detection.run import open_run
from stickytoken.errors import InputError
from stickytoken.findings import Level
from stickytoken.gate import FailOn, Outcome, check
from stickytoken.methods.measures import UNUSUAL_SHARE, Severity, severities_in_words
from stickytoken.settings.profile import ProfileSettings


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(planted_profile):
    return planted_profile[1]


def checked(*arguments):
    return planted.command("check", *arguments)


def test_the_exit_status_says_how_the_check_ended_and_a_run_of_a_part_is_inconclusive(run, finished_run):
    assert checked(run).exit_code == 10
    assert checked(run, "--max", 99).exit_code == 0
    assert checked(run, "--baseline", run).exit_code == 0
    for wrong in (("--max", -1), ("--format", "xml")):
        assert checked(run, *wrong).exit_code == 2, wrong
    assert checked().exit_code == 2
    result = checked(finished_run.path, "--max", 99)
    assert (result.exit_code, result.stdout[:14]) == (1, "inconclusive: ")
    assert says(result.stderr, "inconclusive", "30 of 95")


def test_every_format_says_the_same(run, sarif_schema):
    count = len(open_run(run).sticky)
    first, *rest = planted.lines_of(checked(run).stdout)
    assert re.match(r"failed: .* has \d+ sticky tokens?$", first)
    assert any(planted.PLANTED in line and "error" in line for line in rest)
    result = checked(run, "--format", "json")
    assert result.stdout.isascii()
    document = json.loads(result.stdout)
    assert (document["outcome"], document["run"]) == ("failed", str(run))
    assert document["counted"] == count == len(document["findings"])
    document = json.loads(checked(run, "--format", "sarif").stdout)
    sarif_schema.validate(document)
    assert [result["level"] for result in document["runs"][0]["results"]] == ["error"] * count
    suite = ET.fromstring(checked(run, "--format", "junit").stdout)
    assert (suite.get("failures"), suite.get("errors")) == (str(count), "0")
    *lines, last = checked(run, "--format", "github").stdout.splitlines()
    assert len([line for line in lines if line.startswith("::error ")]) == count
    assert last.startswith("failed: ")


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
    assert result.stdout.startswith("failed: ")
    assert ET.fromstring((tmp_path / "deep" / "results.xml").read_bytes()).get("failures") != "0"
    (tmp_path / "file").write_text("")
    assert checked(run, "--format", "json", "--out", "file/results.json").exit_code == 1


def test_settings_of_the_project_hold_unless_an_option_says_otherwise(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.stickytoken]\nmodel = '{run}'\nmax = 99\n", "utf-8")
    assert checked().exit_code == 0
    assert checked("--max", 0).exit_code == 10
    document = json.loads(checked("--max", 0, "--format", "sarif").stdout)
    location = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["region"]["startLine"]) == ("pyproject.toml", 2)
    (tmp_path / "pyproject.toml").write_text("[tool.stickytoken]\nmax = 'many'\n", "utf-8")
    planted.assert_refused("check", run, saying=naming("max", "pyproject.toml", "'many'"))


def test_findings_are_placed_in_the_repository_and_found_again_elsewhere(run, tmp_path, sarif_schema):
    shutil.copytree(run, tmp_path / "runs" / "a run [1]")
    document = json.loads(checked("runs/a run [1]", "--format", "sarif").stdout)
    sarif_schema.validate(document)
    location = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "runs/a%20run%20%5B1%5D/tokens.parquet"
    prints = []
    for path in (run, "runs/a run [1]"):
        findings_found = json.loads(checked(path, "--format", "json").stdout)["findings"]
        prints.append({finding["fingerprint"] for finding in findings_found})
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


# Documents: copies of flagged tokens fail the check, and what cannot be read is no pass


CLEAN = ["the river opens near the market.", "a quiet bird sings in the garden."]
COPIES = f"the old stone {' '.join([planted.PLANTED] * 12)} falls."


def test_copies_of_a_flagged_token_close_the_gate_whatever_is_tolerated(run):
    clean = check(run, baseline=run, documents=[*CLEAN, "market " * 40])
    assert clean.passed
    assert (clean.documents.searched, clean.documents.counted) == (3, 0)
    # A repeated word without a flag is a warning.
    assert [f.level for f in clean.findings if f.rule == "document-repetition"] == [Level.WARNING]
    result = check(run, baseline=run, max_tokens=99, fail_on="severe", documents=[*CLEAN, COPIES])
    assert result.outcome is Outcome.FAILED
    (error,) = (finding for finding in result.findings if finding.level is Level.ERROR)
    assert error.rule == "document-copies"
    assert (result.documents.searched, result.documents.counted) == (3, 1)
    assert says(result.headline(), "1 of 3 documents", "flagged token: 1")


def test_documents_alone_decide_if_no_token_counts(run):
    clean = check(run, fail_on="none", documents=CLEAN)
    assert clean.passed
    assert says(clean.headline(), "passed", "none of 2 documents")
    result = check(run, fail_on="none", documents=[*CLEAN, COPIES])
    assert says(result.headline(), "failed", "1 of 3 documents", "flagged token: 1")


@pytest.mark.parametrize(
    ("document", "cause"), [("air [SEP] flow", "special"), ("market " * 40, "repetition")]
)
def test_other_causes_close_the_gate_on_request(run, document, cause):
    assert check(run, baseline=run, documents=[*CLEAN, document]).passed
    result = check(run, baseline=run, documents=[*CLEAN, document], fail_on_documents=[cause])
    assert result.outcome is Outcome.FAILED
    assert result.documents.causes == {cause: 1}
    # Copies of a flagged token always do.
    assert not check(run, baseline=run, documents=[COPIES], fail_on_documents=[cause]).passed


def test_the_command_takes_causes_and_counts_documents_in_one_form(run, write):
    write("documents.txt", "\n".join([*CLEAN, "market " * 40, "air [SEP] flow"]) + "\n")
    arguments = ("check", run, "--baseline", run, "--documents", "documents.txt")
    result = planted.command(
        *arguments, "--fail-on-documents", "repetition", "--fail-on-documents", "special"
    )
    assert result.exit_code == 10, result.stderr
    assert says(result.stdout, "2 of 4 documents fail", "special token: 1", "repetition: 1")
    assert says(result.stdout, "2 of 4 documents have findings", "special token: 1", "repetition: 1")
    planted.assert_refused(
        *arguments, "--fail-on-documents", "copies", status=2, saying=naming("'copies'", "repetition")
    )


def test_documents_that_cannot_be_read_are_no_pass(run, write):
    broken = write("documents.txt", b"a quiet bird sings.\n\xff\xfe broken\nthe river opens.\n")
    result = check(run, baseline=run, documents=broken)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert says(result.incomplete[0], "1 record")


@pytest.mark.skipif(os.name != "posix", reason="POSIX links only")
def test_a_folder_of_which_a_part_is_not_read_is_no_pass(run, tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("a quiet bird sings.")
    (folder / "linked").symlink_to(tmp_path)
    result = check(run, baseline=run, documents=folder)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert says(result.incomplete[0], "1 record")


def test_missing_documents_are_refused_before_anything_else(run, tmp_path):
    with pytest.raises(InputError):
        check("no/such/model", documents=tmp_path / "missing.txt")
    for empty in ([], tmp_path):
        with pytest.raises(InputError):
            check(run, documents=empty)
    with pytest.raises(InputError, match=naming("column", "'text'")):
        check(run, column="text")


def test_the_command_names_file_and_line(run, write):
    write("documents.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in [*CLEAN, COPIES]))
    table = f"[tool.stickytoken]\nmodel = '{run}'\nbaseline = '{run}'\n"
    write("pyproject.toml", f"{table}documents = 'documents.jsonl'\n")
    result = planted.command("check", "--format", "github")
    assert result.exit_code == 10, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("::error "))
    assert line.startswith("::error file=documents.jsonl,line=3,")
    table = planted.command("check", "--column", "text")
    assert table.exit_code == 10
    assert re.search(r"error\s+flagged", table.stdout)
    planted.assert_refused("check", "--column", "nothing", saying=naming("'nothing'"))


def test_columns_that_were_not_searched_stand_in_the_first_line(run, write):
    rows = [{"_id": str(number), "text": text, "summary": COPIES} for number, text in enumerate(CLEAN)]
    path = write("documents.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    by_name = check(run, fail_on="none", documents=path)
    assert by_name.passed
    assert "NOT searched, although they contain text: summary" in by_name.headline()
    chosen = check(run, fail_on="none", documents=path, column="text")
    assert "NOT searched" not in chosen.headline()
    assert not check(run, fail_on="none", documents=path, column=["text", "summary"]).passed


# What is printed first: the documents, and of these the documents that fail the check


REPETITION = "market " * 40


@pytest.fixture
def documents(write):
    """A file with two clean documents, a repetition, which is a warning, and copies of a sticky token."""
    return write("documents.txt", "\n".join([*CLEAN, REPETITION, COPIES]) + "\n")


def test_documents_come_before_tokens_and_errors_before_warnings(run, documents):
    result = check(run, documents=documents)
    rules = [finding.rule for finding in result.findings]
    assert rules[:2] == ["document-copies", "document-repetition"]
    assert set(rules[2:]) == {"sticky-token"}
    _, listed = checked(run, "--documents", documents).stdout.split("documents have findings")
    words = [word for word in listed.split() if word in ("flagged", "repetition", "sticky")]
    assert words[:3] == ["flagged", "repetition", "sticky"]


def test_tokens_that_do_not_count_are_one_line(run, documents):
    lines = planted.lines_of(checked(run, "--documents", documents, "--fail-on", "none").stdout)
    count = len(open_run(run).sticky)
    (line,) = (line for line in lines if "sticky token" in line)
    assert re.match(rf"{count} sticky tokens? in .*, not counted \(--fail-on none\)$", line)


def test_quiet_lists_only_what_fails_the_check(run, documents):
    def printed(*options):
        result = checked(run, "--documents", documents, "--quiet", *options)
        assert result.stderr == ""
        return result.stdout

    assert "error" in printed()
    assert planted.PLANTED in printed().partition("sticky token fails the check")[2]
    for hidden in ("warning", "run: ", "market"):
        assert hidden not in printed()
    alone = printed("--fail-on", "none")
    assert says(alone, "1 document")
    assert "not counted" not in alone
    assert "sticky" not in alone.replace("flagged token", "")


# A rules file in place of a run: only documents are checked


@pytest.fixture
def rules(run, tmp_path):
    """The rules file that `clean --rules-out` writes for the run."""
    assert planted.command("clean", run, "--rules-out", "rules.json").exit_code == 0
    return tmp_path / "rules.json"


def test_rules_find_in_documents_what_the_run_finds(run, rules):
    documents = [*CLEAN, REPETITION, COPIES]
    by_run = check(run, fail_on="none", documents=documents)
    for source in (rules, str(rules), Cleaner.from_file(rules)):
        by_rules = check(source, documents=documents)
        assert by_rules.outcome is Outcome.FAILED
        assert by_rules.documents == by_run.documents
        assert by_rules.headline() == by_run.headline()
        expected = [f.fingerprint for f in by_run.findings if f.rule != "sticky-token"]
        assert [finding.fingerprint for finding in by_rules.findings] == expected
    assert check(rules, documents=CLEAN).passed


def test_a_check_by_rules_knows_the_model_but_no_run(run, rules):
    result = check(rules, documents=CLEAN)
    assert (result.model, result.run, result.rules_file) == (open_run(run).model_name, None, rules)
    assert (result.fail_on, result.counted, result.sticky) == (FailOn.NONE, 0, None)
    summary = result.summary()
    assert (summary["run"], summary["rules_file"], summary["sticky"]) == (None, str(rules), None)


def test_rules_without_flagged_words_are_noted(write):
    cleaner = Cleaner(CleaningRules())
    result = check(cleaner, documents=CLEAN)
    assert result.passed
    assert result.model is None
    reading, note = result.notes
    assert reading.startswith("read: ")
    assert says(note, "flagged token")
    assert check(cleaner, documents=["market " * 40], fail_on_documents=["repetition"]).documents.counted == 1


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--fail-on", "sticky", "fail_on"),
        ("--max", 0, "max_tokens"),
        ("--baseline", "runs/before", "baseline"),
        ("--revision", "main", "revision"),
        ("--folder", "runs", "folder"),
    ],
)
def test_options_that_need_a_run_are_refused_with_rules(rules, documents, option, value, name):
    arguments = ("check", rules, "--documents", documents)
    planted.assert_refused(*arguments, option, value, saying=naming("rules", name))
    assert checked(rules, "--documents", documents, "--fail-on", "none").exit_code == 10


@pytest.mark.parametrize(("option", "value"), [("--folder", "runs"), ("--revision", "main")])
def test_options_that_need_a_model_are_refused_with_a_run(run, write, option, value):
    planted.assert_refused("check", run, option, value, saying=naming(run, option.removeprefix("--")))
    write("pyproject.toml", f"[tool.stickytoken]\n{option.removeprefix('--')} = '{value}'\n")
    assert checked(run).exit_code == 10  # the file sets it for the project's model


def test_rules_without_documents_are_refused(rules):
    planted.assert_refused("check", rules, saying=naming(rules, "documents"))


def test_settings_about_tokens_in_a_file_do_not_hold_for_rules(run, rules, documents, write):
    settings_of_tokens = f"fail-on = 'serious'\nmax = 3\nbaseline = '{run}'\n"
    write("pyproject.toml", f"[tool.stickytoken]\nmodel = '{run}'\n{settings_of_tokens}")
    assert checked(rules, "--documents", documents).exit_code == 10
    planted.assert_refused(
        "check", rules, "--documents", documents, "--max", 1, saying=naming("rules", "max_tokens")
    )
    write("pyproject.toml", f"[tool.stickytoken]\nmodel = 'rules.json'\n{settings_of_tokens}")
    planted.assert_refused(
        "check", "--documents", documents, saying=naming("rules", "fail_on", "max_tokens", "baseline")
    )


def test_every_format_reports_documents_by_rules(rules, documents, sarif_schema):
    def printed(output_format):
        result = checked(rules, "--documents", documents, "--format", output_format)
        assert result.exit_code == 10
        return result.stdout

    table = planted.lines_of(printed("table"))
    assert says(table[0], "failed", "1 of 4 documents", "flagged token: 1")
    assert table[-1].startswith("rules: ")
    findings = json.loads(printed("json"))["findings"]
    assert [finding["level"] for finding in findings] == ["error", "warning"]
    sarif = json.loads(printed("sarif"))
    sarif_schema.validate(sarif)
    assert len(sarif["runs"][0]["results"]) == 2
    assert ET.fromstring(printed("junit")).get("failures") == "1"
    assert printed("github").startswith("::error file=documents.txt,line=4,")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "stickytoken cleaner", "rul', "JSON"),
        ("hello", "JSON"),
        ("", "JSON"),
        ("{}", "rules"),
        (None, "No such file"),
    ],
)
def test_a_file_that_has_no_rules_is_refused(write, documents, content, message):
    if content is not None:
        write("broken.json", content)
    saying = naming("broken.json", message)
    planted.assert_refused("check", "broken.json", "--documents", documents, saying=saying)


def test_rules_of_another_version_are_refused(rules, documents):
    rules.write_text(rules.read_text("utf-8").replace('"version": 1', '"version": 7'), "utf-8")
    planted.assert_refused(
        "check", rules, "--documents", documents, saying=naming("rules.json", "version", 7)
    )


@pytest.mark.parametrize("content", [None, ""])
def test_missing_and_empty_documents_are_refused_with_rules(rules, write, content):
    if content is not None:
        write("none.txt", content)
    planted.assert_refused("check", rules, "--documents", "none.txt", saying=naming("none.txt"))


# What the severities mean: the help and the page have the definition in the code


def flat(text):
    return " ".join(re.sub(r"[│╭╮╰╯─*`]", " ", text).split())


def test_help_and_page_define_every_severity():
    printed = planted.command("check", "--help", COLUMNS="2000").stdout
    assert severities_in_words() in flat(printed)
    for severity in Severity:
        assert severity.meaning in flat(PAGE)


def test_the_thresholds_in_the_definition_are_the_defaults():
    settings = ProfileSettings()
    for share, severity in ((UNUSUAL_SHARE, Severity.MILD), (1, Severity.SERIOUS)):
        erased = share * settings.smallest_erased
        push = 1 + share * (settings.smallest_push - 1)
        assert f"{erased:.0%} or a push of {push:g} times" in severity.meaning


# The workflow and the hook of docs/ci.md, run as a build server runs them


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text("utf-8")


BLOCKS = re.findall(r"^```(yaml|toml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WORKFLOW, HOOKS = (yaml.safe_load(text) for language, text in BLOCKS if language == "yaml")
(SETTINGS,) = (text for language, text in BLOCKS if language == "toml")


@pytest.fixture
def repository(planted_profile, tmp_path):
    """A git repository with a model that has a sticky token, its run, and the settings of the page."""
    root = tmp_path / "repository"
    shutil.copytree(planted_profile[0], root / "my_model")
    # `check` of a model takes no run with other thresholds, such as those of the shared run.
    profiled.detect_in_documents(load_encoder(root / "my_model"), root / "runs" / "run", smallest_push=1.5)
    shutil.copytree(root / "runs" / "run", root / "runs" / "baseline")
    (root / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
    (root / ".pre-commit-config.yaml").write_text(yaml.safe_dump(HOOKS), encoding="utf-8")
    command = tmp_path / "bin" / "stickytoken"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m stickytoken "$@"\n', "utf-8")
    command.chmod(0o755)
    for arguments in (["init", "-q"], ["add", "pyproject.toml", ".pre-commit-config.yaml", "my_model"]):
        shell(root, "git", *arguments)
    return root


def shell(root, *command):
    paths = [str(root.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "PATH": os.pathsep.join(paths),
        "PRE_COMMIT_HOME": str(root.parent / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)


def settings(root, text):
    (root / "pyproject.toml").write_text(f'[tool.stickytoken]\nmodel = "my_model"\n{text}', encoding="utf-8")


@pytest.mark.nightly  # starts a command at every step
def test_the_workflow_stops_at_a_sticky_token_and_leaves_what_it_uploads(repository):
    """Steps with `uses` run on GitHub alone; those with `run` run here, but for the installation."""
    (job,) = WORKFLOW["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert steps.pop(0) == "pip install stickytoken"
    assert steps
    (upload,) = (step for step in job["steps"] if "upload-sarif" in step.get("uses", ""))
    assert upload["if"] == "always()"
    for text, status in (("", 10), ('baseline = "runs/baseline"\n', 0), ("max = 50\n", 0)):
        settings(repository, text)
        for step in steps:
            done = shell(repository, "bash", "-e", "-c", step)
            assert done.returncode == status, done.stderr
            assert "Traceback" not in done.stderr
        (run,) = json.loads((repository / upload["with"]["sarif_file"]).read_text("utf-8"))["runs"]
        assert any(result["level"] == "error" for result in run["results"]) == (status == 10)
        location = run["results"][0]["locations"][0]["physicalLocation"]
        assert (location["artifactLocation"]["uri"], location["region"]) == (
            "pyproject.toml",
            {"startLine": 2},
        )


@pytest.mark.nightly  # starts a command at every step
def test_the_hook_refuses_a_commit_with_a_sticky_model(repository):
    settings(repository, "")
    shell(repository, "git", "add", "-A", "my_model", "pyproject.toml")
    hook = (sys.executable, "-m", "pre_commit", "run", "stickytoken")
    done = shell(repository, *hook)
    assert (done.returncode, "exit code: 10" in done.stdout) == (1, True), done.stderr
    settings(repository, "max = 50\n")
    shell(repository, "git", "add", "pyproject.toml")
    done = shell(repository, *hook)
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout


def test_a_name_that_is_too_long_for_a_file_is_one_line():
    planted.assert_refused("check", "m" * 300, "--documents", "documents.txt")
