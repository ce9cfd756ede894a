"""The examples in docs/documents.md do what the page says."""

import re
import shutil
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "documents.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
CLEANED = "The flow of air"


@pytest.fixture
def run(cleaner_file, bert_folder, tmp_path, monkeypatch):
    """Run an example in a folder that has what it names."""
    shutil.copy(cleaner_file, tmp_path / "cleaner.json")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(bert_folder)
    monkeypatch.chdir(tmp_path)

    def run_example(name):
        names = {}
        exec(EXAMPLES[name], names)
        return names

    return run_example


def test_every_library_has_an_example():
    assert set(EXAMPLES) == {
        "sentence-transformers", "Hugging Face datasets", "LlamaIndex", "LangChain", "Haystack",
    }  # fmt: skip


def test_sentence_transformers(run):
    names = run("sentence-transformers")
    plain = names["guarded"].unguarded
    assert names["vector"].tolist() == plain.encode(CLEANED).tolist()


def test_data_sets(run):
    assert run("Hugging Face datasets")["cleaned"]["text"] == [CLEANED]


def test_llama_index(run):
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    assert [node.text for node in run("LlamaIndex")["nodes"]] == [CLEANED]


def test_langchain(run):
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    assert [document.page_content for document in run("LangChain")["documents"]] == [CLEANED]


def test_haystack(run):
    pytest.importorskip("haystack", reason="haystack-ai is not installed")
    assert [document.content for document in run("Haystack")["found"]["clean"]["documents"]] == [CLEANED]
