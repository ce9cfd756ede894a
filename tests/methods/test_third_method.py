"""A method that is no part of the package goes through all of it, by its entry in the registry alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import impact_files
import norm_method
import planted
from stickytoken import check, compare, detect, judge, load_encoder, open_run, probe, report
from stickytoken.comparisons import Answer
from stickytoken.errors import InputError, RunError
from stickytoken.methods.registry import entries, register, unregister
from stickytoken.reports.content import read_content

pytestmark = pytest.mark.slow

COMMANDS = """
import json, sys
import norm_method
from stickytoken.methods.registry import register
register(norm_method.ENTRY)
from typer.testing import CliRunner
from stickytoken.cli.app import app
found = []
for arguments in json.load(sys.stdin):
    result = CliRunner().invoke(app, arguments)
    found.append((result.exit_code, result.stdout, result.stderr))
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register(norm_method.ENTRY)
    yield
    unregister("norm")


@pytest.fixture(scope="module")
def run(planted_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("norm") / "run"
    return detect(str(planted_folder), method="norm", sentences=planted.small_corpus(), out=out)


def test_the_table_holds_its_columns_and_the_record_its_settings_plan_and_result(run):
    rows = load_encoder(run.record.model.name).model[0].embedding.weight.detach().numpy()
    norms = np.linalg.norm(rows[run.tokens["token_id"].to_numpy()], axis=1)
    np.testing.assert_allclose(run.tokens["norm"], norms, rtol=1e-6)
    np.testing.assert_allclose(run.tokens["z"], (norms - norms.mean()) / norms.std(), atol=1e-5)
    assert run.tokens["lift"].is_null().all()
    assert run.sticky["token"][0] == planted.PLANTED
    assert run.result.sticky == len(run.sticky)
    assert (run.record.method, run.record.identity_parts["settings"]["cut"]) == ("norm", 4.0)
    again = open_run(run.path)
    assert again.tokens.equals(run.tokens)
    assert (again.result, again.plan) == (run.result, norm_method.NormPlan(**dict(run.plan)))


def test_reports_show_its_words_and_do_not_promise_what_was_not_measured(run, tmp_path):
    for kind in ("md", "html"):
        page = report(run, format=kind)
        assert "have an unusual norm" in page
        assert "z-score" in page
        assert "cannot tell whether any" not in page
    document = json.loads(report(run, format="json"))
    assert document["flagged"][0]["token"] == planted.PLANTED
    assert document["figures"][0]["name"] == "distribution"
    # Its settings alone choose the method.
    options = {"settings": norm_method.NormSettings(cut=1e9), "sentences": planted.small_corpus()}
    page = report(detect(run.record.model.name, out=tmp_path / "clean", **options), format="md")
    assert "puts no tokens into texts, so it cannot tell whether any" in page
    assert "stickytoken judge" not in page


def test_checks_take_its_verdicts_and_what_needs_lifts_refuses_it(run):
    checked = check(run)
    assert checked.outcome.value == "closed"
    assert not any("no verdict" in message for message in checked.incomplete)
    with pytest.raises(InputError, match="cannot judge another corpus"):
        judge(run, planted.small_corpus())
    with pytest.raises(InputError, match="does not measure single tokens"):
        probe(run.record.model.name, ["river"], method="norm", sentences=planted.small_corpus())


def test_it_is_compared_with_a_run_of_another_method(run, planted_run, tmp_path):
    comparison = compare([run, planted_run])
    assert comparison.table["method"].to_list() == ["norm", "std"]
    assert set(comparison.comparability.answers.values()) == {Answer.NO}
    report(comparison, out=tmp_path / "comparison.html")
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert "Runs of a method without these measures appear in the table only" in page


FAILING = {"topical", "validated", "wrong sort", "lacking", "its own"}


@pytest.fixture(scope="module")
def commanded(run, planted_folder, sentence_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    model = str(planted_folder)
    out = str(folder / "run")
    corpus = ["--sentences", str(sentence_file)]
    task = str(impact_files.sts(folder))
    few = "--copies 4 --set repetitions=1 --set resamples=100 --device cpu -f json".split()
    detected = "--method norm --set cut=5 --device cpu -f json --out".split()
    request = {
        "detect": ["detect", model, *corpus, *detected, out],
        "help": ["detect", "--help"],
        "settings": ["detect", "--set", "help"],
        "show": ["show", out],
        "sorted": ["show", out, "--sort", "norm", "--limit", "2", "-f", "json"],
        "topical": ["show", out, "--verdict", "topical"],
        "validated": ["show", out, "--validated"],
        "wrong sort": ["show", out, "--sort", "validation_rate"],
        "card": ["card", out],
        "report": ["report", out, "--format", "md"],
        "impact": ["impact", out, "--task", task, *few],
        "lacking": ["detect", model, "--method", "norm", "--set", "budget=9"],
        "its own": ["detect", model, "--set", "cut=9"],
    }
    support = str(Path(norm_method.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(list(request.values())),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path]), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(request, json.loads(done.stdout), strict=True))


def test_every_command_works_with_it(commanded):
    for name, (status, _, stderr) in commanded.items():
        assert status == (name in FAILING), (name, stderr)
    detected = json.loads(commanded["detect"][1])
    assert detected["method"] == "norm"
    assert detected["sticky"][0]["token"] == planted.PLANTED
    assert detected["sticky"][0]["z"] > 5
    norms = [row["norm"] for row in json.loads(commanded["sorted"][1])["tokens"]]
    assert norms == sorted(norms, reverse=True)


SHOWN = [  # command, 1 for standard output or 2 for standard error, words
    ("show", 1, "have an unusual norm"),
    ("show", 1, "z-score"),
    ("report", 1, "have an unusual norm"),
    ("help", 1, "|".join([*(entry.name for entry in entries()), "norm"])),
    ("help", 1, "norm: norms of embedding rows."),
    ("settings", 1, "in standard deviations. Default: 4 (norm)."),
    ("help", 1, "Default: ids (profile), text (std), ids (norm)."),
    ("lacking", 2, "--set budget is not an option of the method norm: leave it out, or use profile"),
    ("its own", 2, "--set cut is not an option of the method profile: leave it out, or use norm"),
    ("topical", 2, "gives no token the verdict 'topical': choose sticky or benign"),
    ("validated", 2, "judges every token"),
    ("wrong sort", 2, "sort by norm, z"),
]


def test_tables_help_and_errors_know_it(commanded):
    for name, stream, words in SHOWN:
        assert words in " ".join(re.sub(r"[│╭╮╰╯─]", " ", commanded[name][stream]).split()), name


def test_a_name_is_given_once():
    with pytest.raises(InputError, match="a method 'norm' is already registered"):
        register(norm_method.ENTRY)


def test_without_the_method_its_run_is_not_read_wrongly(run):
    unregister("norm")
    try:
        for read in (open_run, read_content):
            with pytest.raises(RunError, match=r"run\.json is not a valid record \(method: "):
                read(run.path)
    finally:
        register(norm_method.ENTRY)
