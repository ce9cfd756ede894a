"""Documents are searched in order, in any number of processes, and a batch is searched once."""

import json
from random import Random

import polars as pl
import pytest

import scanned
from stickytoken import open_run, scan
from stickytoken.cleaning import find_spans, spans
from stickytoken.data.documents import Document, Wanted, open_documents
from stickytoken.errors import InputError, RunError
from stickytoken.scanning import _passes as _token_pass
from stickytoken.scanning import _workers
from stickytoken.scanning._passes import Keeper, batched, search
from stickytoken.scanning._workers import examine
from stickytoken.scanning.results import open_scan, scans_in
from stickytoken.scanning.scan import scan_documents


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(_token_pass, "_DOCUMENTS", 8)


def test_documents_with_copies_are_found_and_no_others(scanned_run):
    texts = scanned.documents(60, range(10, 13))
    found = scan(scanned_run, texts)
    assert found["number"].to_list() == [10, 11, 12]
    assert found["words"].to_list() == [[{"text": scanned.STICKY, "copies": scanned.COPIES}]] * 3
    assert found["kinds"].to_list() == [["flagged"]] * 3
    shares = [len(scanned.copies()) / len(texts[number]) for number in (10, 11, 12)]
    assert found["share"].to_list() == pytest.approx(shares)
    assert scan(scanned_run, [f"{scanned.STICKY} is a word", "another"]).is_empty()


@pytest.mark.usefixtures("small_batches")
def test_other_processes_find_the_same(scanned_run):
    texts = scanned.documents(100, range(90, 100))
    alone = scan_documents(scanned_run, texts, workers=1)
    together = scan_documents(scanned_run, texts, workers=2)
    assert together.documents.equals(alone.documents)
    ignored = {"seconds": 0.0}
    assert together.result.model_copy(update=ignored) == alone.result.model_copy(update=ignored)


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_dies_is_an_error_of_one_line(scanned_run, monkeypatch):
    ask = _workers._Worker.ask

    def killed(worker, texts):
        worker._process.kill()
        worker._process.wait()
        return ask(worker, texts)

    monkeypatch.setattr(_workers._Worker, "ask", killed)
    with pytest.raises(RunError, match="a process that scanned documents ended"):
        scan(scanned_run, scanned.documents(48), workers=2)


@pytest.mark.usefixtures("small_batches")
def test_a_stopped_scan_continues_where_it_was(scanned_run, tmp_path):
    texts = scanned.documents(80, range(70, 80))
    whole = scan_documents(scanned_run, texts, out=tmp_path / "whole", workers=1)

    def stop(progress):
        if progress.done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan_documents(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=stop)
    with pytest.raises(RunError, match="not finished"):
        open_scan(tmp_path / "scan")
    steps = []
    found = scan_documents(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=steps.append)
    assert found.documents.equals(whole.documents)
    assert steps[-1].computed == 80 - 40
    again = []
    scan_documents(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=again.append)
    assert again[-1].computed == 0
    assert open_scan(tmp_path / "scan").documents.equals(whole.documents)


@pytest.mark.usefixtures("small_batches")
def test_only_batches_that_changed_are_searched_again(scanned_run, tmp_path):
    texts = scanned.documents(80)
    scan(scanned_run, texts, out=tmp_path / "scan", workers=1)
    texts[44] += " " + scanned.copies()
    steps = []
    found = scan(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=steps.append)
    assert found["number"].to_list() == [44]
    assert steps[-1].computed == 8


def test_scans_of_a_run_folder_are_listed_and_damaged_or_different_ones_named(scanned_run, tmp_path):
    scan(scanned_run, ["a text"], out=tmp_path / "scan-1")
    (tmp_path / "docs.txt").write_text("a text\n")
    with pytest.raises(RunError, match="contains a different scan"):
        scan(scanned_run, tmp_path / "docs.txt", out=tmp_path / "scan-1")
    scan(scanned_run, ["a text"], out=tmp_path / "scan-2")
    (tmp_path / "scan-2" / "scan.json").write_text("{")
    found, unread = scans_in(tmp_path)
    assert [each.path.name for each in found] == ["scan-1"]
    assert len(unread) == 1


def test_nothing_to_scan_is_an_error(scanned_run, write):
    with pytest.raises(InputError, match="is empty: pass documents"):
        scan(scanned_run, [])
    with pytest.raises(InputError, match=r"no readable document: 2 records .*line 1"):
        scan(scanned_run, write("a.txt", b"\xff\n\xfe\xfe\n"))
    with pytest.raises(InputError, match="workers"):
        scan(scanned_run, ["a"], workers=0)
    with pytest.raises(InputError, match="columns"):
        scan(scanned_run, ["a"], columns=3)


def test_sources_are_counted(scanned_run):
    texts = scanned.documents(30, range(5))
    rows = [{"text": text, "source": "web" if place < 10 else "wiki"} for place, text in enumerate(texts)]
    result = scan_documents(scanned_run, rows).result
    assert [(each.source, each.documents, each.found) for each in result.sources] == [
        ("web", 10, 5),
        ("wiki", 20, 0),
    ]


def test_a_long_document_is_searched_in_segments_and_nothing_else_is_lost(monkeypatch):
    before, behind = scanned.documents(2)
    text = f"{before} {scanned.copies()} {behind}"
    whole = examine(text, scanned.RULES)
    monkeypatch.setattr(spans, "_SEGMENT", 100)
    assert examine(text, scanned.RULES) == whole
    text = f"Before, {scanned.copies()} after <|endof<|endoftext|>text|> and so on."
    found = examine(text, scanned.RULES)
    assert find_spans(found["rest"], scanned.RULES) == []
    assert found["rest"].split() == ["Before,", "after", "and", "so", "on."]
    assert "".join(piece for piece, _ in found["excerpt"]) == text


@pytest.mark.parametrize("seed", range(3))
def test_the_sample_depends_on_no_order(seed):
    random = Random(seed)
    texts = ["".join(random.choices("ab \U0001f642", k=random.randint(0, 6))) for _ in range(30)]

    def sample():
        values = open_documents(texts, Wanted())
        tally = search(values, scanned.RULES, Keeper(), workers=1, sampled=5, progress=lambda _: None)
        return tally.sample

    before = sample()
    random.shuffle(texts)
    assert sample() == before
    assert len(before) == len(set(before)) == 5


def test_batches_end_at_a_size_and_differ_if_anything_does():
    documents = [Document(place, str(place), "x" * 100) for place in range(3000)]
    batches = list(batched(documents))
    assert [len(batch.documents) for batch in batches] == [1024, 1024, 952]
    assert [batch.index for batch in batches] == [0, 1, 2]
    huge = [Document(place, str(place), "x" * 5_000_000) for place in range(2)]
    assert [len(batch.documents) for batch in batched(huge)] == [1, 1]
    (one,), (other,) = batched([Document(0, "a", "x")]), batched([Document(0, "a", "x", "web")])
    assert one.digest != other.digest


def test_text_is_kept_as_valid_json_and_parquet(scanned_run, tmp_path):
    text = f"\x00 \u2028 \U0001f642 {scanned.copies()}"
    found = scan_documents(scanned_run, [text], out=tmp_path / "scan")
    assert pl.read_parquet(tmp_path / "scan" / "documents.parquet").equals(found.documents)
    json.loads((tmp_path / "scan" / "scan.json").read_text())
    assert open_run(scanned_run).record.identity == found.record.identity_parts["run"]
