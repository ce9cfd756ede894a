"""A method that is no part of the package goes through all of it, by its entry in the registry alone."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import impact_files
import planted
import toy_method
from stickytoken import compare, detect, explain, impact, open_run, report
from stickytoken.comparisons.result import Answer
from stickytoken.demo._answers import (
    Filters,
    computed_evidence,
    filtered,
    headings,
    listed_tokens,
    other_sentences,
    table_rows,
    worked_example,
)
from stickytoken.demo.context import SharedModel, find_runs
from stickytoken.detection import probe
from stickytoken.encoders import load_encoder
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import ExplainSettings
from stickytoken.methods.entry import MethodEntry
from stickytoken.methods.registry import entries, register
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


def test_detect_finds_the_planted_token_by_the_toys_own_rule(run):
    assert run.record.method == "toy"
    assert run.sticky["token"][0] == planted.PLANTED
    assert run.result.sticky == len(run.sticky) == (run.tokens["score"] > 3).sum()
    assert isinstance(run.result, toy_method.ToyResult)
    assert isinstance(run.plan, toy_method.ToyPlan)
    assert run.record.identity_parts["settings"]["cut"] == 3.0
    assert open_run(run.path).result == run.result
    assert json.loads((run.path / "run.json").read_text("utf-8"))["result"]["typical"] == run.result.typical


def test_its_settings_alone_choose_the_method(toy_encoder, tmp_path):
    settings = toy_method.ToySettings(cut=1e9)
    found = detect(toy_encoder, sentences=planted.small_corpus(), settings=settings, out=tmp_path / "run")
    assert found.record.method == "toy"
    assert found.sticky.is_empty()
    page = report(found, format="md")
    assert "No token is sticky: the highest, for scale" in page


def test_an_interrupted_run_continues_and_gives_the_same_bytes(toy_encoder, run, tmp_path):
    options = {
        "method": "toy",
        "sentences": planted.small_corpus(),
        "out": tmp_path / "run",
        "shard_probes": 60,
    }

    def interrupt(progress):
        if progress.stage == "toy" and progress.done > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detect(toy_encoder, **options, progress=interrupt)
    committed = planted.shards_of(tmp_path / "run")
    assert committed
    with pytest.raises(RunError, match="is not finished"):
        open_run(tmp_path / "run")
    assert "not finished" in report(tmp_path / "run", format="md")
    done = detect(toy_encoder, **options)
    assert planted.shards_of(done.path).items() > committed.items()
    for name in ("tokens.parquet", "plan.json", "vocabulary.parquet"):
        assert (done.path / name).read_bytes() == (run.path / name).read_bytes()


def test_a_probe_gives_what_the_run_stores(toy_encoder, run):
    worst = run.sticky.row(0, named=True)
    (found,) = probe(
        toy_encoder,
        [worst["token_id"]],
        method="toy",
        sentences=planted.small_corpus(),
    )
    assert found.lift == pytest.approx(worst["lift"], abs=1e-6)


def test_a_method_without_pairs_refuses_them(toy_encoder, tmp_path):
    with pytest.raises(InputError, match="the method toy takes no pairs: pass sentences, or use the method"):
        detect(toy_encoder, method="toy", pairs=[("a", "b", 0.1)], out=tmp_path / "run")


def test_reports_show_its_words_columns_and_figures(run, tmp_path):
    page = report(run, format="html", out=tmp_path / "report.html")
    text = report(run, format="md")
    document = json.loads(report(run, format="json"))
    assert page is not None
    html = (tmp_path / "report.html").read_text("utf-8")
    for said in ("tokens are sticky to a toy", "this is a toy with 6 texts", "A toy put 4 copies behind 6"):
        assert said in html
        assert said in text
    assert "toy score" in html
    assert [figure["name"] for figure in document["figures"]][:3] == [
        "toy-scores",
        "symptom-curves",
        "toy-scatter",
    ]
    assert document["computed"]["plan"] == {"carriers": 6}
    assert document["tone"] == "serious"
    assert document["flagged"][0]["token"] == planted.PLANTED
    assert document["worst"][0]["pairs"]
    assert document["glossary"]["toy score"] == toy_method.ToyMethod.glossary["toy score"]


def test_it_is_compared_with_a_run_of_another_method(run, planted_run, tmp_path):
    found = compare([run, planted_run])
    assert found.table["method"].to_list() == ["toy", "std"]
    assert set(found.comparability.answers.values()) == {Answer.NO}
    report(found, out=tmp_path / "comparison.html")
    assert "Runs of a method without such a scale" in (tmp_path / "comparison.html").read_text("utf-8")


def test_an_explanation_takes_its_texts_from_the_plan(toy_encoder, run):
    settings = ExplainSettings(carriers=3, benign=3, attribution=False, pairs=0)
    found = explain(toy_encoder, [planted.PLANTED], run=run, settings=settings)
    assert found.source == "run run"
    assert found.document()["tokens"][0]["token"] == planted.PLANTED


def test_the_web_app_explores_it(toy_encoder, run):
    content = find_runs([run.path], run.path.parent).content("run")
    rows = filtered(content, Filters(verdicts=("sticky",)))
    assert rows["token_id"].to_list() == run.sticky["token_id"].to_list()
    assert headings(content)[:4] == ["token", "verdict", "toy score", "lift"]
    assert table_rows(content, rows)[0][0] == planted.PLANTED
    model = SharedModel(toy_encoder)
    ordinary = content.evidence.tokens.filter("ordinary")["token_id"][0]
    shown = computed_evidence(content, ordinary, model)
    assert len(shown.evidence.tokens.filter(~pl.col("ordinary"))) == 1
    corpus = planted.small_corpus()
    assert worked_example(content, model.vocabulary, corpus).token_id == run.sticky["token_id"][0]
    assert listed_tokens(content)[0] == (run.sticky["token_id"][0], "sticky")
    assert set(other_sentences(content, corpus)) <= set(run.plan.anchors)


def test_impact_measures_its_sticky_tokens(toy_encoder, run, tmp_path):
    task = impact_files.sts(tmp_path)
    worst = replace(impact_files.FEW, sticky=1)
    found = impact(toy_encoder, [task], run=run, settings=worst, out=tmp_path / "impact")
    assert found.effects.filter("main").row(0, named=True)["difference_low"] > 0


# From the command line.


@pytest.fixture(scope="module")
def commanded(run, planted_folder, sentence_file, tmp_path_factory):
    """Every command with the toy, in an interpreter that registers it before the command line is built."""
    folder = tmp_path_factory.mktemp("commands")
    model, out, corpus = str(planted_folder), str(folder / "run"), ["--sentences", str(sentence_file)]
    task = str(impact_files.sts(folder))
    few = ["--copies", "4", "--repetitions", "1", "--resamples", "100"]
    asked = {
        "detect": [
            *("detect", model, *corpus, "--method", "toy", "--cut", "5", "--text-count", "5"),
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
            *("explain", out, planted.PLANTED, "--carriers", "3", "--benign", "3", "--no-attribution"),
            *("--device", "cpu", "-f", "json"),
        ],
        "impact": ["impact", out, "--task", task, *few, "--device", "cpu", "-f", "json"],
        "lacking": ["detect", model, "--method", "toy", "--budget", "9"],
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
    failing = {"topical", "validated", "wrong sort", "lacking", "its own"}
    for name, (status, _, stderr) in commanded.items():
        assert status == (1 if name in failing else 0), (name, stderr)
    detected = json.loads(commanded["detect"][1])
    assert detected["method"] == "toy"
    assert detected["sticky"][0]["token"] == planted.PLANTED
    assert detected["sticky"][0]["score"] > 5
    assert "tokens are sticky to a toy" in commanded["show"][1]
    assert "toy score" in commanded["show"][1]
    assert "this is a toy with 5 texts" in commanded["show"][2]
    scores = [row["score"] for row in json.loads(commanded["sorted"][1])["tokens"]]
    assert scores == sorted(scores, reverse=True)
    assert "Toy lifts" in commanded["probe"][1]
    assert "No lift is high by itself." in commanded["probe"][1]
    assert json.loads(commanded["probe json"][1])[0]["token"] == planted.PLANTED
    assert "are sticky to a toy" in commanded["report"][1]


def test_help_and_errors_know_it(commanded):
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", commanded["help"][1]).split())
    assert "profile|std|toy" in shown
    assert "toy: a toy." in shown
    assert "Copies behind each text. Default: 4 (toy)." in shown
    assert "Default: ids (profile), text (std), ids (toy)." in shown
    assert (
        "--budget is not an option of the method toy: leave it out, or use profile" in commanded["lacking"][2]
    )
    assert (
        "--repeats is not an option of the method profile: leave it out, or use toy"
        in commanded["its own"][2]
    )
    assert "has no verdict 'topical': list by sticky or benign" in commanded["topical"][2]
    assert "judges every token" in commanded["validated"][2]
    assert "sort by lift, score" in commanded["wrong sort"][2]


# The registry.


def test_a_name_is_given_once():
    again = MethodEntry("toy", "", (), takes_pairs=False, load=toy_method.ToyMethod)
    with pytest.raises(InputError, match="a method 'toy' is already registered"):
        register(again)


def test_without_the_method_its_run_is_not_read_wrongly(run):
    toy_method.unregister("toy")
    try:
        assert [entry.name for entry in entries()] == ["profile", "std"]
        with pytest.raises(RunError, match=r"run\.json is not a valid record \(method: "):
            open_run(run.path)
        with pytest.raises(RunError, match=r"run\.json is not a valid record \(method: "):
            read_content(run.path)
    finally:
        register(toy_method.ENTRY)
