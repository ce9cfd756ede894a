"""Documents are searched in order, in any number of processes, and a batch is searched once."""

import sys
from random import Random

import pytest

import scanned
from stickytoken import load_encoder, scan
from stickytoken.cleaning import find_spans, spans
from stickytoken.errors import InputError, RunError
from stickytoken.scanning.scan import open_scan, scan_documents, scans_in


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("stickytoken.scanning._passes._DOCUMENTS", 8)


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
def test_other_processes_find_the_same_and_sources_are_counted(scanned_run):
    texts = scanned.documents(100, range(90, 100))
    rows = [{"text": text, "source": "web" if place < 93 else "wiki"} for place, text in enumerate(texts)]
    alone = scan_documents(scanned_run, rows, workers=1)
    together = scan_documents(scanned_run, rows, workers=2)
    assert together.documents.equals(alone.documents)
    counts = [(each.source, each.documents, each.found) for each in alone.result.sources]
    assert counts == [("wiki", 7, 7), ("web", 93, 3)]
    ignored = {"seconds": 0.0}
    assert together.result.model_copy(update=ignored) == alone.result.model_copy(update=ignored)


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_dies_is_an_error_of_one_line(scanned_run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
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
    # A finished scan searches the batches that changed.
    texts[44] += " " + scanned.copies()
    found = scan(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=steps.append)
    assert found["number"].to_list() == [44, *range(70, 80)]
    assert steps[-1].computed == 8
    assert open_scan(tmp_path / "scan").documents.equals(found)


def test_a_finding_in_a_whole_file_has_the_line_of_the_file(scanned_run, tmp_path):
    (tmp_path / "page.md").write_text(f"a title\n\nsome text\nand {scanned.copies()}\n")
    assert scan(scanned_run, tmp_path)["line"].to_list() == [4]


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


def test_nothing_to_scan_and_wrong_options_are_errors(scanned_run, write):
    with pytest.raises(InputError, match="is empty: pass documents"):
        scan(scanned_run, [])
    with pytest.raises(InputError, match=r"no readable document: 2 records .*line 1"):
        scan(scanned_run, write("a.txt", b"\xff\n\xfe\xfe\n"))
    with pytest.raises(InputError, match="workers"):
        scan(scanned_run, ["a"], workers=0)
    with pytest.raises(InputError, match="columns"):
        scan(scanned_run, ["a"], columns=3)


def test_a_long_document_is_searched_in_segments_and_nothing_else_is_lost(scanned_run, monkeypatch):
    before, behind = scanned.documents(2)
    text = f"{before} {scanned.copies()} {behind}"
    whole = find_spans(text, scanned.RULES)
    monkeypatch.setattr(spans, "_SEGMENT", 100)
    assert find_spans(text, scanned.RULES) == whole
    run = "very very very very"
    (span,) = find_spans(f"{before * 3} {run} good", scanned.RULES)
    assert (span.first_end - span.start, span.end - span.start) == (len("very"), len(run))
    text = f"Before, {scanned.copies()} after <|endof<|endoftext|>text|> and so on."
    (excerpt,) = scan(scanned_run, [text])["excerpt"].to_list()
    assert "".join(piece["text"] for piece in excerpt) == text
    assert excerpt[1] == {"text": scanned.copies(), "found": True}


def test_the_sample_depends_on_no_order(scanned_run):
    encoder, texts = load_encoder(scanned_run.parent / "model"), scanned.documents(340, range(1))

    def spread():
        return scan_documents(scanned_run, texts, encoder=encoder, effect="predicted").result.effect.spread

    before = spread()
    Random(0).shuffle(texts)
    assert spread() == before


def test_a_document_that_is_there_twice_is_drawn_once(scanned_run):
    encoder, texts = load_encoder(scanned_run.parent / "model"), scanned.documents(40, range(1))
    found = scan_documents(scanned_run, [*texts, *[texts[-1]] * 60], encoder=encoder, effect="predicted")
    assert found.result.effect.queries + found.result.effect.reference == 39


def test_batches_end_at_a_number_of_documents_or_a_size(scanned_run, tmp_path, monkeypatch):
    monkeypatch.setattr("stickytoken.scanning._passes._CHARACTERS", 5000)
    for name, texts, count in (("many", ["x"] * 2500, 3), ("large", ["x" * 9000] * 2, 2)):
        scan(scanned_run, texts, out=tmp_path / name, workers=1)
        assert len(list((tmp_path / name / "shards").iterdir())) == count
