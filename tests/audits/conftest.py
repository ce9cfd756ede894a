"""Audits that several modules look at: with queries alone, and with relevance judgements."""

import json

import pytest

import profiled
import scanned
from audited import MARKER, SMALL, WORDS, save_run
from stickytoken.audits import audit


@pytest.fixture(scope="session")
def tampered_run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("tampered"), strength=2)


@pytest.fixture(scope="session")
def queries():
    return [f"{MARKER} {sentence}" for sentence in profiled.sentences(40, WORDS, seed=9)]


@pytest.fixture(scope="session")
def texts():
    """Eighty documents, four of which have copies of the sticky word."""
    sentences = profiled.sentences(240, WORDS, seed=3)
    texts = [" ".join(sentences[3 * number : 3 * number + 3]) for number in range(80)]
    for planted_number in range(70, 74):
        texts[planted_number] += f" {scanned.copies()}"
    return texts


@pytest.fixture(scope="session")
def finished(tampered_run, texts, queries):
    return audit(tampered_run, texts, queries=queries, settings=SMALL)


@pytest.fixture(scope="session")
def judged_folder(texts, queries, tmp_path_factory):
    """Documents and queries in the BEIR layout; three documents answer each of the first 20 queries."""
    folder = tmp_path_factory.mktemp("judged")
    documents = [
        json.dumps({"_id": f"d{number}", "title": "", "text": text, "source": ("web", "manual")[number % 2]})
        for number, text in enumerate(texts)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(documents), "utf-8")
    rows = [json.dumps({"_id": f"q{number}", "text": query}) for number, query in enumerate(queries)]
    (folder / "queries.jsonl").write_text("\n".join(rows), "utf-8")
    (folder / "qrels").mkdir()
    judgements = [f"q{number}\td{3 * number + step}\t1" for number in range(20) for step in range(3)]
    judgements.append("q0\td79\t0")  # judged, but not relevant
    lines = ["query-id\tcorpus-id\tscore", *judgements]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="session")
def judged(tampered_run, judged_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("audit") / "judged"
    return audit(tampered_run, judged_folder, settings=SMALL, out=out)
