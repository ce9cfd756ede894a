"""The wheel in clean environments: the core alone, and each extra by itself, in a copy made of hard links."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import stickytoken
import task_files

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ["STICKYTOKEN_WHEEL"]).absolute()
FEW = "--method std --set sentence-count=40 --set pair-count=60 --set validation-pairs=6".split()
QUICK = (*FEW, "--sample", 4, "--set", "scoring-pairs=2")
# Megabytes on Linux with torch's build for the CPU; a CUDA build is gigabytes larger.
CORE_MEGABYTES = 2000
PACKAGE_MEGABYTES = 15


class Environment:
    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "bin" / "python"

    def install(self, *requirements):
        """Install with pip in the tested versions; modules are compiled when they are first imported."""
        options = ("--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt")
        self.run("-m", "pip", "install", *options, *requirements)

    def run(self, *arguments, status=0):
        command = [*map(str, (self.python, *arguments))]
        options = {"capture_output": True, "text": True, "env": outside(), "cwd": self.folder}
        completed = subprocess.run(command, **options, check=False)
        assert completed.returncode == status, completed.stderr
        return completed

    def done(self, *arguments):
        return self.run("-m", "stickytoken", *arguments).stdout

    def assert_refused(self, *arguments):
        complaint = self.run("-m", "stickytoken", *arguments, status=1).stderr
        assert "Traceback" not in complaint
        return complaint.strip().splitlines()[-1]

    def megabytes(self, name="."):
        (packages,) = (self.folder / "lib").glob("python*/site-packages")
        return sum(path.stat().st_size for path in (packages / name).rglob("*") if path.is_file()) / 1e6


def outside():
    mine = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in mine}
    return environment | {"COLUMNS": "300", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environments") / "core"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    environment = Environment(folder)
    environment.install(WHEEL)
    return environment


@pytest.fixture
def with_extra(core, tmp_path):
    def install(extra):
        folder = tmp_path / "environment"
        shutil.copytree(core.folder, folder, symlinks=True, copy_function=os.link)
        environment = Environment(folder)
        environment.install(f"{WHEEL}[{extra}]")
        return environment

    yield install
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.fixture(scope="session")
def run(core, bert_folder, sentence_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    core.done("detect", bert_folder, "--sentences", sentence_file, *QUICK, "--out", folder)
    return folder


def test_the_core_says_its_version_and_lists_tokens(core, bert_folder):
    assert core.done("--version") == f"stickytoken {stickytoken.__version__}\n"
    assert json.loads(core.done("tokens", bert_folder, "--format", "json"))["vocab_size"] == 125
    script = core.folder / "bin" / "stickytoken"
    done = subprocess.run([script, "--help"], capture_output=True, text=True, env=outside(), check=True)
    assert "Usage" in done.stdout


def test_the_sizes_are_those_of_the_documents(core):
    total = core.megabytes()
    package_size = core.megabytes("stickytoken")
    sys.stdout.write(f"core with dependencies: {total:.0f} MB; stickytoken: {package_size:.1f} MB\n")
    assert total < CORE_MEGABYTES
    assert package_size < PACKAGE_MEGABYTES


def test_the_core_detects_shows_and_probes(core, bert_folder, run, sentence_file):
    assert "stickytoken[report]" in core.assert_refused("report", run)
    assert json.loads(core.done("show", run, "--format", "json"))
    assert "river" in core.done("probe", bert_folder, "river", "--sentences", sentence_file, *FEW)


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("offline", "detect all-MiniLM-L6-v2 --sample 50 --out OUT"),
        ("report", "report RUN --out OUT/report.html"),
        ("figures", "report RUN --figures OUT"),
        ("ray", "detect MODEL --sentences SENTENCES --set engine=ray --out OUT QUICK"),
        ("ranking", "evaluate MODEL --task RETRIEVAL"),
    ],
)
def test_an_extra_does_its_work(with_extra, extra, line, run, bert_folder, sentence_file, tmp_path):
    if extra == "figures" and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("there is no Chromium")
    retrieval = task_files.beir(tmp_path / "beir")
    path_of = {"MODEL": bert_folder, "RUN": run, "SENTENCES": sentence_file, "RETRIEVAL": retrieval}
    (tmp_path / "out").mkdir()
    path_of |= {"OUT": tmp_path / "out", "QUICK": " ".join(map(str, QUICK))}
    for word, path in path_of.items():
        line = line.replace(word, str(path))
    with_extra(extra).done(*line.split())
    assert extra == "ranking" or any((tmp_path / "out").iterdir())


def test_demo_serves_the_page(with_extra, run, tmp_path):
    command = [with_extra("demo").python, "-m", "stickytoken", "demo", "--run", run, "--port", "0"]
    with (tmp_path / "log").open("w+", encoding="utf-8") as log:
        output = {"stdout": log, "stderr": subprocess.STDOUT, "env": outside(), "cwd": tmp_path}
        with subprocess.Popen([*map(str, command)], **output) as served:
            try:
                with urllib.request.urlopen(announced(tmp_path / "log", served), timeout=60) as page:
                    assert b"stickytoken" in page.read()
            finally:
                served.send_signal(signal.SIGINT)
    assert served.returncode == 130


def announced(log, served):
    while served.poll() is None:
        words = log.read_text("utf-8").split()
        if addresses := [word.rstrip(".,;") for word in words if word.startswith("http://127.0.0.1:")]:
            return addresses[0]
        time.sleep(0.2)
    raise AssertionError(log.read_text("utf-8"))


@pytest.mark.parametrize(
    ("extra", "arguments", "reached"),
    [
        ("hub", "detect MODEL --sentences hub:someone/sentences", "someone/sentences"),
        ("mteb", "evaluate MODEL --task STSBenchmark", "STSBenchmark"),
        ("endpoint", "detect http://127.0.0.1:9/v1#m --set tokenizer=MODEL", "127.0.0.1:9"),
    ],
)
def test_an_extra_reaches_for_what_is_elsewhere(with_extra, bert_folder, extra, arguments, reached):
    line = with_extra(extra).assert_refused(*arguments.replace("MODEL", str(bert_folder)).split())
    assert reached in line
    assert "pip install" not in line


@pytest.mark.parametrize("extra", ["haystack", "langchain", "llama-index"])
def test_an_adapter_is_there(with_extra, extra):
    module = f"stickytoken.adapters.{extra.replace('-', '_')}"
    printed = with_extra(extra).run("-c", f"import {module}; print({module}.__name__)").stdout
    assert printed.strip() == module
