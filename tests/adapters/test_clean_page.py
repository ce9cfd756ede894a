"""The examples in docs/documents.md do what the page says."""

import re
import shutil
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "documents.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
CLEANED = "The flow of air"


READ = {
    "Hugging Face datasets": ("datasets", lambda names: names["cleaned"]["text"]),
    "LlamaIndex": ("llama_index.core", lambda names: [node.text for node in names["nodes"]]),
    "LangChain": ("langchain_core", lambda names: [document.page_content for document in names["documents"]]),
    "Haystack": (
        "haystack", lambda names: [document.content for document in names["found"]["clean"]["documents"]]
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def place(cleaner_file, bert_folder, tmp_path, monkeypatch):
    shutil.copy(cleaner_file, tmp_path / "rules.json")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(bert_folder)
    monkeypatch.chdir(tmp_path)


def run(name):
    names = {}
    exec(EXAMPLES[name], names)
    return names


def test_sentence_transformers():
    names = run("sentence-transformers")
    assert names["vector"].tolist() == names["guarded"].unguarded.encode(CLEANED).tolist()


@pytest.mark.parametrize("name", READ)
def test_an_example_cleans_its_documents(name):
    package, read = READ[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert read(run(name)) == [CLEANED]
