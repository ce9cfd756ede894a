"""A method that is no part of the package goes through all of it, by its entry in the registry alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import impact_files
import planted
import toy_method
from stickytoken import compare, detect, open_run, report
from stickytoken.comparisons import Answer
from stickytoken.detection import probe
from stickytoken.encoders import load_encoder
from stickytoken.errors import InputError, RunError
from stickytoken.methods.entry import MethodEntry
from stickytoken.methods.registry import entries, register, unregister
from stickytoken.reports.content import read_content

SUPPORT = Path(toy_method.__file__).parent
COMMANDS = """
import json, sys
import toy_method
from stickytoken.methods.registry import register
register(toy_method.ENTRY)
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
    with toy_method.registered():
        yield


@pytest.fixture(scope="module")
def toy_encoder(planted_folder):
    return load_encoder(planted_folder, device="cpu")


@pytest.fixture(scope="module")
def run(toy_encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("toy") / "run"
    return detect(toy_encoder, method="toy", sentences=planted.small_corpus(), out=out)


# From Python.


def test_detect_and_probe_find_the_planted_token_by_the_toys_own_rule(toy_encoder, run):
    assert run.record.method == "toy"
    assert run.sticky["token"][0] == planted.PLANTED
    assert run.result.sticky == len(run.sticky) == (run.tokens["score"] > 3).sum()
    assert isinstance(run.result, toy_method.ToyResult)
    assert isinstance(run.plan, toy_method.ToyPlan)
    assert run.record.identity_parts["settings"]["cut"] == 3.0
    assert open_run(run.path).result == run.result
    worst = run.sticky.row(0, named=True)
    (probed,) = probe(toy_encoder, [worst["token_id"]], method="toy", sentences=planted.small_corpus())
    assert probed.lift == pytest.approx(worst["lift"], abs=1e-6)
    assert json.loads((run.path / "run.json").read_text("utf-8"))["result"]["typical"] == run.result.typical


def test_its_settings_alone_choose_the_method(toy_encoder, tmp_path):
    settings = toy_method.ToySettings(cut=1e9)
    found = detect(toy_encoder, sentences=planted.small_corpus(), settings=settings, out=tmp_path / "run")
    assert found.record.method == "toy"
    assert found.sticky.is_empty()
    assert "No token is sticky: the highest, for scale" in report(found, format="md")


def test_reports_show_its_words_columns_and_figures(run):
    html, text = report(run, format="html"), report(run, format="md")
    document = json.loads(report(run, format="json"))
    for said in ("tokens are sticky to a toy", "A toy put 4 copies behind 6"):
        assert said in html
        assert said in text
    names = [figure["name"] for figure in document["figures"]]
    assert names[:2] == ["distribution", "symptom-curves"]
    assert document["tone"] == "serious"
    assert document["flagged"][0]["token"] == planted.PLANTED
    assert document["worst"][0]["pairs"]


def test_it_is_compared_with_a_run_of_another_method(run, planted_run, tmp_path):
    found = compare([run, planted_run])
    assert found.table["method"].to_list() == ["toy", "std"]
    assert set(found.comparability.answers.values()) == {Answer.NO}
    report(found, out=tmp_path / "comparison.html")
    assert "Runs of a method without such a scale" in (tmp_path / "comparison.html").read_text("utf-8")


# From the command line.

FAILING = {"topical", "validated", "wrong sort", "lacking", "its own"}


@pytest.fixture(scope="module")
def commanded(run, planted_folder, sentence_file, tmp_path_factory):
    """Every command with the toy, in an interpreter that registers it before the command line is built."""
    folder = tmp_path_factory.mktemp("commands")
    model, out, corpus = str(planted_folder), str(folder / "run"), ["--sentences", str(sentence_file)]
    task = str(impact_files.sts(folder))
    few = ["--copies", "4", "--set", "repetitions=1", "--set", "resamples=100"]
    asked = {
        "detect": [
            *("detect", model, *corpus, "--method", "toy", "--set", "cut=5", "--set", "text-count=5"),
            *("--device", "cpu", "--out", out, "-f", "json"),
        ],
        "help": ["detect", "--help"],
        "probe": ["probe", model, planted.PLANTED, *corpus, "--method", "toy", "--device", "cpu"],
        "probe json": ["probe", model, planted.PLANTED, *corpus, "--method", "toy", "-f", "json"],
        "show": ["show", out],
        "sorted": ["show", out, "--sort", "score", "--limit", "2", "-f", "json"],
        "topical": ["show", out, "--verdict", "topical"],
        "validated": ["show", out, "--validated"],
        "wrong sort": ["show", out, "--sort", "validation_rate"],
        "report": ["report", out, "--format", "md"],
        "explain": [
            *("explain", out, planted.PLANTED, "--set", "carriers=3", "--set", "benign=3"),
            *("--set", "attribution=false", "--device", "cpu", "-f", "json"),
        ],
        "impact": ["impact", out, "--task", task, *few, "--device", "cpu", "-f", "json"],
        "lacking": ["detect", model, "--method", "toy", "--set", "budget=9"],
        "its own": ["detect", model, "--repeats", "9"],
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, json.loads(done.stdout), strict=True))


@pytest.mark.slow
def test_every_command_works_with_it(commanded):
    for name, (status, _, stderr) in commanded.items():
        assert status == (name in FAILING), (name, stderr)
    detected = json.loads(commanded["detect"][1])
    assert detected["method"] == "toy"
    assert detected["sticky"][0]["token"] == planted.PLANTED
    assert detected["sticky"][0]["score"] > 5
    scores = [row["score"] for row in json.loads(commanded["sorted"][1])["tokens"]]
    assert scores == sorted(scores, reverse=True)
    assert json.loads(commanded["probe json"][1])[0]["token"] == planted.PLANTED


SHOWN = [  # command, 1 for standard output or 2 for standard error, words
    ("show", 1, "tokens are sticky to a toy"),
    ("show", 1, "toy score"),
    ("probe", 1, "Tokens by the method toy"),
    ("report", 1, "are sticky to a toy"),
    ("help", 1, "|".join([*(entry.name for entry in entries()), "toy"])),
    ("help", 1, "toy: a toy."),
    ("help", 1, "Copies behind each text. Default: 4 (toy)."),
    ("help", 1, "Default: ids (profile), text (std), ids (toy)."),
    ("lacking", 2, "--set budget is not an option of the method toy: leave it out, or use profile"),
    ("its own", 2, "--repeats is not an option of the method profile: leave it out, or use toy"),
    ("topical", 2, "has no verdict 'topical': list by sticky or benign"),
    ("validated", 2, "judges every token"),
    ("wrong sort", 2, "sort by lift, score"),
]


@pytest.mark.slow
def test_tables_help_and_errors_know_it(commanded):
    for name, stream, words in SHOWN:
        assert words in " ".join(re.sub(r"[│╭╮╰╯─]", " ", commanded[name][stream]).split()), name


# The registry.


def test_a_name_is_given_once():
    again = MethodEntry("toy", "", (), takes_pairs=False, load=toy_method.ToyMethod)
    with pytest.raises(InputError, match="a method 'toy' is already registered"):
        register(again)


def test_without_the_method_its_run_is_not_read_wrongly(run):
    unregister("toy")
    try:
        for read in (open_run, read_content):
            with pytest.raises(RunError, match=r"run\.json is not a valid record \(method: "):
                read(run.path)
    finally:
        register(toy_method.ENTRY)
