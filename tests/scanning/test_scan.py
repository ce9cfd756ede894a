"""Scans: what is found, once and in order, what copies do to documents, and the command."""

import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import planted
import profiled
import scanned
from hostile import HOSTILE, assert_harmless
from naming import naming, says
from planted import command
from stickytoken import Cleaner, load_encoder, open_run, open_scan, report, scan
from stickytoken.cleaning import SpanKind, find_spans
from stickytoken.errors import InputError, RunError
from stickytoken.findings import sarif
from stickytoken.scanning import _effects, _search, _workers
from stickytoken.scanning.results import scans_in
from stickytoken.scanning.wording import RULES, basis, describe_findings, headline, scan_findings


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(_search, "_DOCUMENTS", 8)


def test_documents_with_copies_are_found_and_no_others(scanned_run):
    texts = scanned.documents(60, range(10, 13))
    found_documents = scan(scanned_run, texts).documents
    assert found_documents["number"].to_list() == [10, 11, 12]
    word = {"text": scanned.STICKY, "kind": "flagged", "copies": scanned.COPIES}
    assert found_documents["words"].to_list() == [[word]] * 3
    assert found_documents["kinds"].to_list() == [["flagged"]] * 3
    shares = [len(scanned.copies()) / len(texts[number]) for number in (10, 11, 12)]
    assert found_documents["share"].to_list() == pytest.approx(shares)
    assert scan(scanned_run, [f"{scanned.STICKY} is a word", "another"]).documents.is_empty()


@pytest.mark.usefixtures("small_batches")
def test_other_processes_find_the_same_and_sources_are_counted(scanned_run):
    texts = scanned.documents(100, range(90, 100))
    rows = [{"text": text, "source": "web" if number < 93 else "wiki"} for number, text in enumerate(texts)]
    alone = scan(scanned_run, rows, workers=1)
    together = scan(scanned_run, rows, workers=2)
    assert together.documents.equals(alone.documents)
    counts = [(source.source, source.documents, source.found) for source in alone.result.sources]
    assert counts == [("wiki", 7, 7), ("web", 93, 3)]
    assert together.result.model_copy(update={"seconds": alone.result.seconds}) == alone.result


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_dies_is_an_error_of_one_line(scanned_run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=naming("process", 1)):
        scan(scanned_run, scanned.documents(48), workers=2)


@pytest.mark.usefixtures("small_batches")
def test_a_stopped_scan_continues_where_it_was(scanned_run, tmp_path):
    texts = scanned.documents(80, range(70, 80))
    uninterrupted = scan(scanned_run, texts, out=tmp_path / "whole", workers=1)

    def stop(progress):
        if progress.done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=stop)
    with pytest.raises(RunError, match=naming(tmp_path / "scan", "finished")):
        open_scan(tmp_path / "scan")
    steps = []
    continued = scan(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=steps.append)
    assert continued.documents.equals(uninterrupted.documents)
    assert steps[-1].computed == 80 - 40
    # A finished scan searches the batches that changed.
    texts[44] += " " + scanned.copies()
    continued = scan(scanned_run, texts, out=tmp_path / "scan", workers=1, progress=steps.append)
    assert continued.documents["number"].to_list() == [44, *range(70, 80)]
    assert steps[-1].computed == 8
    assert open_scan(tmp_path / "scan").documents.equals(continued.documents)


def test_a_finding_in_a_whole_file_has_the_line_of_the_file(scanned_run, tmp_path):
    (tmp_path / "page.md").write_text(f"\na title\n\nsome text\nand {scanned.copies()}\n")
    assert scan(scanned_run, tmp_path).documents["line"].to_list() == [5]


def test_scans_of_a_run_folder_are_listed_and_damaged_or_different_ones_named(scanned_run, tmp_path):
    scan(scanned_run, ["a text"], out=tmp_path / "scan-1")
    (tmp_path / "docs.txt").write_text("a text\n")
    with pytest.raises(RunError, match=naming(tmp_path / "scan-1", "different")):
        scan(scanned_run, tmp_path / "docs.txt", out=tmp_path / "scan-1")
    scan(scanned_run, ["a text"], out=tmp_path / "scan-2")
    (tmp_path / "scan-2" / "scan.json").write_text("{")
    scans_found, unread = scans_in(tmp_path)
    assert [scan_found.path.name for scan_found in scans_found] == ["scan-1"]
    assert len(unread) == 1


def test_a_scan_is_written_where_it_is_asked_for(scanned_run, rules_file, tmp_path):
    run = open_run(shutil.copytree(scanned_run, tmp_path / "run"))
    assert scan(run, ["a text"]).path is None
    kept = scan(run, ["a text"], in_run_folder=True)
    assert kept.path == run.path / f"scan-{kept.record.identity[:12]}"
    assert open_scan(kept.path).record == kept.record
    assert scan(run, ["a text"], in_run_folder=True, out=tmp_path / "own").path == tmp_path / "own"
    assert scan(rules_file, ["a text"], in_run_folder=True).path is None


def test_further_words_are_findings(scanned_run):
    text = f"{'zebra ' * 3} a text"
    assert scan(scanned_run, [text]).result.found == 0
    found = scan(scanned_run, [text, "zebra zebra zebra zebra"], words=["zebra"])
    assert found.documents["kinds"].to_list()[-1] == ["flagged"]


def test_a_folder_of_something_else_is_refused_before_the_model_is_loaded(scanned_run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=naming(tmp_path / "own", "scan")):
        scan(scanned_run, ["a text"], effect=True, encoder="no/such/model", out=tmp_path / "own")


def test_nothing_to_scan_and_wrong_options_are_errors(scanned_run, write):
    with pytest.raises(InputError, match="empty"):
        scan(scanned_run, [])
    with pytest.raises(InputError, match=naming("2 records", "line 1")):
        scan(scanned_run, write("a.txt", b"\xff\n\xfe\xfe\n"))
    for name, value in (("workers", 0), ("column", 3), ("effect", "guessed")):
        with pytest.raises(InputError, match=naming(name, value)):
            scan(scanned_run, ["a"], **{name: value})


GUESS = " ".join(f"word{number} zebra" if number % 2 else f"word{number}" for number in range(15))


def test_what_is_only_suspected_is_counted_apart(scanned_run):
    scan_found = scan(scanned_run, ["a text", scanned.copies(), GUESS])
    assert (scan_found.result.found, scan_found.result.suspected) == (1, 1)
    assert scan_found.documents["kinds"].to_list() == [["flagged"], ["suspected"]]
    assert says(headline(scan_found), "1 of 3 documents", "flagged token: 1", "1 more", "suspected")
    assert [finding.rule for finding in scan_findings(scan_found)] == [
        "document-copies",
        "document-suspected",
    ]
    only = scan(scanned_run, ["a text", GUESS])
    assert says(headline(only), "none of 2 documents", 1, "suspected")


def test_a_finding_names_the_words_of_its_kind(scanned_run):
    text = f"{scanned.copies(4)} x zebra zebra zebra zebra zebra zebra zebra zebra"
    (finding,) = scan_findings(scan(scanned_run, [text]))
    assert finding.rule == "document-copies"
    assert scanned.STICKY in finding.message
    assert "zebra" not in finding.message


def test_an_excerpt_shows_all_of_a_short_text(scanned_run):
    text = f"Before, {scanned.copies()} after <|endof<|endoftext|>text|> and so on."
    (excerpt,) = scan(scanned_run, [text]).documents["excerpt"].to_list()
    assert "".join(piece["text"] for piece in excerpt) == text
    assert excerpt[1] == {"text": scanned.copies(), "found": True}


def test_the_sample_depends_on_no_order_and_a_document_that_is_there_twice_is_drawn_once(
    scanned_run, encoder
):
    texts = scanned.documents(340, range(1))
    shuffled = Random(0).sample(texts, len(texts))
    one, other = (
        scan(scanned_run, order, encoder=encoder, effect=True).result.effect for order in (texts, shuffled)
    )
    assert one.spread == other.spread
    repeated = [*texts[:40], *[texts[39]] * 60]
    result = scan(scanned_run, repeated, encoder=encoder, effect=True).result.effect
    assert result.queries + result.reference == 39


def test_batches_end_at_a_number_of_documents_or_a_size(scanned_run, tmp_path, monkeypatch):
    monkeypatch.setattr(_search, "_CHARACTERS", 5000)
    for name, texts, count in (("many", ["x"] * 2500, 3), ("large", ["x" * 9000] * 2, 2)):
        scan(scanned_run, texts, out=tmp_path / name, workers=1)
        assert len(list((tmp_path / name / "shards").iterdir())) == count


# What copies do to documents, measured against the definition


COUNTS = (2, 3, 4, 6, 8, 12, 16, 24)
PLANTED = range(40, 64)
QUERIES = profiled.sentences(40, seed=9)
CLEANER = Cleaner(scanned.RULES).without_findings


@pytest.fixture(scope="module")
def encoder(scanned_run):
    return load_encoder(scanned_run.parent / "model", device="cpu")


@pytest.fixture(scope="module")
def texts():
    """Clean documents, and documents with different numbers of copies in different places."""
    documents_found = scanned.documents(120)
    for number in PLANTED:
        copies = scanned.copies(4 + COUNTS[number % len(COUNTS)])
        documents_found[number] = (
            f"{documents_found[number]} {copies}" if number % 3 else f"{copies} {documents_found[number]}"
        )
    return documents_found


@pytest.fixture(scope="module")
def measured(scanned_run, encoder, texts):
    return scan(scanned_run, texts, encoder=encoder, effect=True, queries=QUERIES)


def test_stored_vectors_give_the_same_effects(scanned_run, encoder, texts, tmp_path):
    options = {"encoder": encoder, "effect": True, "queries": QUERIES}
    expected = scan(scanned_run, texts, **options)
    np.save(tmp_path / "vectors.npy", encoder.encode(texts))
    found = scan(scanned_run, texts, vectors=tmp_path / "vectors.npy", **options)
    assert_frame_equal(found.documents, expected.documents)


def test_only_the_cleaned_documents_are_encoded_besides_the_compared_ones(
    scanned_run, encoder, texts, tmp_path
):
    stored = encoder.encode(texts)
    steps = []
    options = {"effect": True, "queries": QUERIES, "progress": steps.append}
    scan(scanned_run, texts, encoder=encoder, vectors=stored, **options)
    assert steps[-1].sequences == len(PLANTED) + len(QUERIES) + 32 + len(PLANTED)


def test_effects_follow_the_vectors_of_the_documents_with_copies(scanned_run, encoder, texts, tmp_path):
    vectors = encoder.encode(texts)
    others = vectors.copy()
    # Less than what is refused.
    others[list(PLANTED)] += 0.03 * np.roll(vectors[list(PLANTED)], 1, axis=0)
    options = {"encoder": encoder, "effect": True, "queries": QUERIES}
    expected = scan(scanned_run, texts, vectors=others, out=tmp_path / "fresh", **options)
    scan(scanned_run, texts, vectors=vectors, out=tmp_path / "scan", **options)
    again = scan(scanned_run, texts, vectors=others, out=tmp_path / "scan", **options)
    assert_frame_equal(again.documents, expected.documents)


def test_vectors_that_do_not_fit_are_refused(scanned_run, encoder, texts):
    stored = encoder.encode(texts)
    options = {"encoder": encoder, "queries": QUERIES}
    with pytest.raises(InputError, match=naming(32)):
        scan(scanned_run, texts, vectors=np.roll(stored, 1, axis=0), effect=True, **options)
    with pytest.raises(InputError, match=naming(len(texts) - 1, len(texts))):
        scan(scanned_run, texts, vectors=stored[1:], effect=True, **options)
    with pytest.raises(InputError, match=naming("vectors", "effect")):
        scan(scanned_run, texts, vectors=stored)


def test_vectors_that_do_not_fit_only_the_documents_with_copies_are_refused(scanned_run, encoder, texts):
    # As if the index had been made after `clean`.
    stored = encoder.encode([CLEANER(text).strip() for text in texts])
    options = {"encoder": encoder, "queries": QUERIES, "effect": True}
    with pytest.raises(InputError, match=naming(encoder.name, 32 + len(PLANTED))):
        scan(scanned_run, texts, vectors=stored, **options)


@pytest.mark.parametrize("place", [0, 1, PLANTED[3], -1])
@pytest.mark.parametrize("value", [np.nan, 0.0])
@pytest.mark.parametrize("queries", [QUERIES, None])
def test_an_unusable_vector_is_refused_wherever_it_is(scanned_run, encoder, texts, place, value, queries):
    stored = encoder.encode(texts)
    stored[place] = value
    options = {"encoder": encoder, "queries": queries, "effect": True}
    with pytest.raises(InputError, match=naming(repr(str(place % len(texts))))):
        scan(scanned_run, texts, vectors=stored, **options)


LONG = 2000


@pytest.fixture
def kept_text(monkeypatch):
    """Less of a document is kept than some have: `LONG` characters."""
    for module in (_search, _effects, _workers):
        monkeypatch.setattr(module, "KEPT_TEXT", LONG)


def very_long(number, beginning=""):
    """Return a text of which less than half is kept, and in which no word comes twice."""
    words = ["".join(syllables) for syllables in product(profiled.SYLLABLES, repeat=3)]
    return f"{beginning} {' '.join(Random(number).sample(words, LONG // 3))}"


@pytest.mark.usefixtures("kept_text")
def test_long_documents_with_their_own_vectors_are_not_refused(scanned_run, encoder, texts):
    texts = [very_long(number) if number % 2 and number not in PLANTED else text
             for number, text in enumerate(texts)]  # fmt: skip
    stored = encoder.encode(texts)
    options = {"encoder": encoder, "queries": QUERIES, "effect": True}
    found = scan(scanned_run, texts, vectors=stored, **options)
    assert found.documents["effect"].null_count() == 0
    stored[::2] = np.roll(stored[::2], 1, axis=0)  # those that are compared
    with pytest.raises(InputError, match=naming(encoder.name)):
        scan(scanned_run, texts, vectors=stored, **options)


@pytest.mark.usefixtures("kept_text")
@pytest.mark.parametrize("has_vectors", [True, False])
def test_an_effect_on_a_document_that_was_not_kept_whole_is_not_measured(
    scanned_run, encoder, texts, has_vectors
):
    # Its beginning gives another number than its whole, and copies may stand behind what was kept.
    early = very_long(1, scanned.copies(12))
    late = f"{very_long(2)} {scanned.copies(12)}"
    texts = [*texts, early, late]
    vectors = encoder.encode(texts) if has_vectors else None
    options = {"encoder": encoder, "queries": QUERIES, "effect": True}
    finished = scan(scanned_run, texts, vectors=vectors, **options)
    assert finished.documents["effect"].is_null().to_list() == [False] * len(PLANTED) + [True] * 2
    assert (finished.result.effect.unread, finished.result.effect.nothing_left) == (2, 0)
    assert says(basis(finished), "2 documents", "not measured")


@pytest.mark.usefixtures("kept_text")
@pytest.mark.parametrize("has_vectors", [True, False])
def test_a_model_that_reads_less_than_was_kept_needs_no_whole_document(
    scanned_run, encoder, texts, has_vectors, monkeypatch
):
    # A character is far less than a token here, so what is kept fills 24 tokens.
    monkeypatch.setattr(_effects, "content_limit", lambda _: 24)
    texts = [*texts, very_long(1, scanned.copies(12)), scanned.copies(LONG)]
    read = [text.ids[:24] for text in encoder.tokenize(texts)]
    vectors = encoder.encode_ids(read) if has_vectors else None
    options = {"encoder": encoder, "queries": QUERIES, "effect": True}
    finished = scan(scanned_run, texts, vectors=vectors, **options)
    assert finished.documents["effect"].is_null().to_list()[-2:] == [False, True]
    assert (finished.result.effect.unread, finished.result.effect.nothing_left) == (0, 1)


def units(encoder, texts):
    vectors = encoder.encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_shift_is_the_mean_change_of_similarity(measured, encoder, texts):
    rest = [CLEANER(texts[number]).strip() for number in PLANTED]
    queries = units(encoder, QUERIES)
    after = units(encoder, [texts[number] for number in PLANTED]) @ queries.T
    before = units(encoder, rest) @ queries.T
    assert measured.documents["number"].to_list() == list(PLANTED)
    np.testing.assert_allclose(measured.documents["shift"], (after - before).mean(axis=1), atol=1e-6)
    spread = measured.result.effect.spread
    np.testing.assert_allclose(measured.documents["effect"], measured.documents["shift"] / spread)
    worst = measured.worst
    assert worst["effect"].is_sorted(descending=True)
    assert worst["severity"][0] == "severe"
    assert measured.result.matter == worst["matters"].sum() > 12
    assert set(worst.filter("matters")["severity"]) <= {"serious", "severe"}


def test_ranks_are_counted_among_clean_documents(measured, encoder, texts):
    assert measured.result.effect.reference == 96
    row = measured.documents.to_dicts()[5]
    queries = units(encoder, QUERIES)
    clean = units(encoder, [text for text in texts if not find_spans(text, scanned.RULES)]) @ queries.T
    text = texts[row["number"]]
    with_copies = units(encoder, [text]) @ queries.T
    without = units(encoder, [CLEANER(text).strip()]) @ queries.T
    passed = (clean < with_copies).mean(axis=0) - (clean < without).mean(axis=0)
    assert row["rise"] == pytest.approx(passed.mean(), abs=2e-3)
    assert row["moves_up"] == pytest.approx((passed >= 0.1).mean(), abs=0.03)


def test_clean_documents_stand_for_queries_and_copies_alone_have_no_effect(scanned_run, encoder, texts):
    scan_found = scan(scanned_run, [*texts, scanned.copies()], encoder=encoder, effect=True)
    effect = scan_found.result.effect
    assert (effect.queries, effect.reference, effect.nothing_left) == (48, 48, 1)
    assert says(effect.queries_from, "48 documents")
    last = scan_found.documents.to_dicts()[-1]
    assert (last["effect"], last["severity"]) == (None, None)
    assert scan_found.worst["number"][-1] == len(texts)
    scan_found = scan(scanned_run, ["a text"], encoder=encoder, effect=True)
    assert (scan_found.result.effect, scan_found.result.found) == (None, 0)


@pytest.mark.parametrize(("declared", "notes"), [("cosine", 0), ("dot", 1)])
def test_another_similarity_of_the_model_is_noted_once(scanned_run, encoder, texts, declared, notes):
    encoder.model.similarity_fn_name = declared
    try:
        found = scan(scanned_run, texts, encoder=encoder, effect=True, queries=QUERIES)
    finally:
        encoder.model.similarity_fn_name = "cosine"
    assert len(found.notes) == notes
    assert all("cosine" in note and declared in note for note in found.notes)


def test_copies_that_the_model_does_not_read_have_no_effect(scanned_run, encoder, texts, monkeypatch):
    monkeypatch.setattr(_effects, "content_limit", lambda _: 24)
    unread = f"{' '.join(texts[:3])} {scanned.copies(12)}"
    assert len(encoder.tokenize([" ".join(texts[:3])])[0].ids) > 24
    found = scan(scanned_run, [*texts, unread], encoder=encoder, effect=True)
    last_row = found.documents.row(-1, named=True)
    assert (last_row["number"], last_row["shift"]) == (len(texts), 0)


def test_effects_are_kept_until_what_they_rest_on_changes(scanned_run, encoder, texts, tmp_path):
    def computed(documents, **options):
        steps = []
        scan(scanned_run, documents, encoder=encoder, out=tmp_path, progress=steps.append, **options)
        return [step.computed for step in steps if step.stage == "effects" and step.done]

    assert computed(texts, effect=True, queries=QUERIES) == [24]
    assert computed(texts, effect=True, queries=QUERIES) == [0]
    assert computed(texts, effect=True, queries=QUERIES[1:]) == [24]


def test_what_effects_need_is_said(scanned_run, encoder, texts):
    other = load_encoder(profiled.planted_model(1, token=scanned.STICKY))
    measured = {"encoder": encoder, "effect": True}
    for run, documents, options, kind, saying in (
        (scanned_run, texts, {"effect": "guessed"}, InputError, naming("effect", "'guessed'")),
        (scanned_run, texts, {"queries": QUERIES}, InputError, naming("queries", "effect")),
        (scanned_run, texts[30:50], measured, InputError, naming(20)),
        (scanned_run, texts, measured | {"encoder": other}, RunError, naming(scanned_run, repr(other.name))),
    ):
        with pytest.raises(kind, match=saying):
            scan(run, documents, **options)


# A rules file in place of a run


@pytest.fixture
def rules_file(scanned_run, tmp_path):
    path = tmp_path / "rules.json"
    Cleaner.from_run(scanned_run).save(path)
    return path


def test_rules_find_what_the_run_finds(scanned_run, rules_file):
    texts = scanned.documents(60, range(10, 13))
    by_run = scan(scanned_run, texts).documents
    for rules in (rules_file, str(rules_file), Cleaner.from_file(rules_file)):
        assert scan(rules, texts).documents.equals(by_run)


def test_a_scan_by_rules_names_the_file_and_the_model(scanned_run, rules_file, texts):
    summary = scan(rules_file, texts).summary()
    assert summary["run"] == str(rules_file)
    assert summary["model"] == open_run(scanned_run).model_name
    assert summary["scan"] is None


def test_effects_need_a_run(rules_file, texts):
    with pytest.raises(InputError, match=naming(rules_file, "effect")):
        scan(rules_file, texts, effect=True)


def test_the_command_scans_by_rules_and_writes_only_on_request(rules_file, texts, write, tmp_path):
    documents = write("own.txt", "\n".join(texts) + "\n")
    before = set(tmp_path.iterdir())
    result = command("scan", rules_file, documents)
    assert result.exit_code == 0, result.stderr
    assert says(result.stdout, f"of {len(texts)} documents", "flagged token:")
    assert set(tmp_path.iterdir()) == before
    assert command("scan", rules_file, documents, "--out", tmp_path / "scan").exit_code == 0
    assert open_scan(tmp_path / "scan").record.run == str(rules_file)
    planted.assert_refused("scan", rules_file, documents, "--effect", saying=naming(rules_file, "run"))


# The command: the answer for people, the formats, bad input, hostile names


@pytest.fixture(scope="module")
def place(scanned_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    texts = scanned.documents(60, range(5, 9))
    ids = [f"d{number}" for number in range(60)]
    sources = ["wiki", "web"] * 30
    pl.DataFrame({"_id": ids, "text": texts, "source": sources}).write_ndjson(folder / "own.jsonl")
    (folder / "own.txt").write_text("\n".join(texts) + "\n")
    return folder


def test_every_format_has_the_documents_with_findings(scanned_run, place, tmp_path):
    options = ("--scan-folder", tmp_path / "scan", "--format")
    table = command("scan", scanned_run, place / "own.jsonl", *options, "table").stdout
    first, *_, last = planted.lines_of(table)
    assert says(first, "4 of 60 documents", "flagged token: 4")
    assert "by source" in table
    assert f"[[{scanned.copies()}]]" in " ".join(table.split())
    assert last.startswith("60 documents of")
    document = planted.document(command("scan", scanned_run, place / "own.jsonl", *options, "json"))
    assert document["found"] == 4
    assert {row["id"] for row in document["found_documents"]} == {f"d{number}" for number in range(5, 9)}
    rows = list(
        csv.DictReader(io.StringIO(command("scan", scanned_run, place / "own.jsonl", *options, "csv").stdout))
    )
    assert {row["id"] for row in rows} == {f"d{number}" for number in range(5, 9)}
    assert {row["words"] for row in rows} == {scanned.STICKY}


def test_a_description_names_only_a_known_severity(scanned_run):
    (row,) = scan(scanned_run, [scanned.copies()]).documents.to_dicts()
    assert describe_findings(row | {"effect": 0.1}, SpanKind.FLAGGED).endswith("; effect +0.10 SD")
    assert describe_findings(row | {"effect": 0.9, "severity": "severe"}, SpanKind.FLAGGED).endswith(
        "; effect +0.90 SD, severe"
    )


def test_progress_counts_documents_from_the_start(scanned_run):
    steps = []
    scan(scanned_run, scanned.documents(40), workers=1, progress=steps.append)
    assert [step.done for step in steps] == [0, 40, 40]
    assert {step.unit for step in steps} == {"documents"}


@pytest.mark.slow
def test_progress_of_effects_counts_every_encoded_text(scanned_run, encoder, texts):
    steps = []
    scan(scanned_run, texts, encoder=encoder, effect=True, queries=QUERIES, progress=steps.append)
    *_, last = [step for step in steps if step.stage == "effects"]
    clean_documents = len(texts) - 24
    assert last.sequences == 2 * 24 + len(QUERIES) + clean_documents


@pytest.mark.parametrize("option", ["--out={}", "--set=write-known={}"])
def test_a_file_in_no_folder_is_refused_before_anything_is_searched(scanned_run, place, tmp_path, option):
    file = tmp_path / "absent" / "found.json"
    given = (scanned_run, place / "own.txt", "--scan-folder", tmp_path / "scan", option.format(file))
    planted.assert_refused("scan", *given, saying=naming(file.parent))
    assert list(tmp_path.iterdir()) == []


def test_sarif_names_file_and_line(scanned_run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    out = tmp_path / "found.sarif"
    result = command("scan", scanned_run, place / "own.txt", "--out", out, "--scan-folder", tmp_path / "scan")
    assert result.exit_code == 0, result.stderr
    run = json.loads(out.read_text())["runs"][0]
    locations = [sarif_result["locations"][0]["physicalLocation"] for sarif_result in run["results"]]
    assert {location["artifactLocation"]["uri"] for location in locations} == {"own.txt"}
    assert sorted(location["region"]["startLine"] for location in locations) == [
        number + 1 for number in range(5, 9)
    ]
    assert {sarif_result["ruleId"] for sarif_result in run["results"]} == {"document-copies"}


def places_in_sarif(scanned_run, tmp_path, source):
    out = tmp_path / "found.sarif"
    result = command("scan", scanned_run, source, "--out", out, "--scan-folder", tmp_path / "scan")
    assert result.exit_code == 0, result.stderr
    (run,) = json.loads(out.read_text())["runs"]
    locations = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert sorted(location["region"]["startLine"] for location in locations) == [6, 7, 8, 9]
    return {tuple(location["artifactLocation"].values()) for location in locations}


def test_sarif_of_standard_input_has_a_place(scanned_run, place, monkeypatch):
    content = (place / "own.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    (run,) = sarif(scan_findings(scan(scanned_run, "-")), RULES, "1")["runs"]
    locations = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert {location["artifactLocation"]["uri"] for location in locations} == {"stdin"}
    assert sorted(location["region"]["startLine"] for location in locations) == [6, 7, 8, 9]


def test_sarif_of_a_file_outside_the_repository_has_a_place(scanned_run, place, tmp_path, monkeypatch):
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    file = place.resolve() / "own.txt"
    expected = {(file.as_posix().lstrip("/"), "FILESYSTEM")}
    assert places_in_sarif(scanned_run, tmp_path, file) == expected


@pytest.mark.slow
def test_effects_are_shown_and_reported(scanned_run, place):
    result = command("scan", scanned_run, place / "own.jsonl", "--effect")
    assert result.exit_code == 0, result.stderr
    assert says(result.stdout, 4, "0.5 SD")
    assert "moves_up" not in result.stdout
    assert f"stickytoken audit {scanned_run} --documents {place / 'own.jsonl'}" in result.stderr
    assert f"stickytoken report {scanned_run}" in result.stderr
    page = report(scanned_run, format="html")
    assert '<h2 id="documents">Documents with copies</h2>' in page
    assert f"<mark>{scanned.copies()}</mark>" in page
    assert "</bdi> × 8; " in page  # the token is isolated from the numbers after it
    assert "## Documents with copies" in report(scanned_run, format="md")
    (scan_record,) = json.loads(report(scanned_run, format="json"))["scans"]
    assert len(scan_record["documents"]) == 4


@pytest.mark.parametrize(("column", "value"), [("excerpt", None), ("moves_up", math.inf)])
def test_a_scan_that_somebody_changed_is_left_out_of_the_report(scanned_run, place, tmp_path, column, value):
    run = Path(shutil.copytree(scanned_run, tmp_path / "run"))
    assert (
        command("scan", run, place / "own.jsonl", "--effect", "--scan-folder", run / "scan-own").exit_code
        == 0
    )
    documents = run / "scan-own" / "documents.parquet"
    pl.read_parquet(documents).with_columns(pl.lit(value).alias(column)).write_parquet(documents)
    page = report(run, format="json")
    assert "A scan is left out" in page
    assert f"in column '{column}'" in page


@pytest.mark.slow
def test_hostile_ids_and_texts_are_shown_and_never_interpreted(scanned_run, tmp_path):
    names = [*HOSTILE, "=1+1", "@cmd", 'a,b"c']
    texts = [f"{name} {scanned.copies()} {name}" for name in names]
    pl.DataFrame({"id": names, "text": texts, "source": names}).write_ndjson(tmp_path / "own.jsonl")
    options = ("--scan-folder", scanned_run / "scan-hostile", "--set", "limit=100")
    for output_format in ("table", "json", "sarif", "csv"):
        result = command("scan", scanned_run, tmp_path / "own.jsonl", *options, "--format", output_format)
        assert result.exit_code == 0, result.stderr
        assert_harmless(result.stdout)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {"'=1+1", "'@cmd"} <= {row["id"] for row in rows}
    assert not any(str(value).startswith(("=", "+", "@")) for row in rows for value in row.values())
    page = report(scanned_run, format="html")
    assert "<b>" not in page
    assert "&lt;/script&gt;" in page
    shutil.rmtree(scanned_run / "scan-hostile")


def test_skipped_records_are_counted_and_named(scanned_run, tmp_path):
    (tmp_path / "own.txt").write_bytes(b"a text\n\xff\xfe!\nanother\n")
    result = command("scan", scanned_run, tmp_path / "own.txt", "--scan-folder", tmp_path / "scan")
    assert result.exit_code == 0
    assert says(result.stderr, "note", "1 record", "skipped")
    assert says(result.stderr, "own.txt", "line 2", "byte 7", "0xff", "UTF-8")


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_scanned(scanned_run, tmp_path):
    (tmp_path / "own.txt").write_text("\n".join(scanned.documents(500) * 100) + "\n")
    given = (scanned_run, tmp_path / "own.txt", "--scan-folder", tmp_path / "scan")
    arguments = [sys.executable, "-m", "stickytoken", "scan", *map(str, given), "--set", "workers=2"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        shards = tmp_path / "scan" / "shards"
        while process.poll() is None and (not shards.is_dir() or len(list(shards.iterdir())) < 4):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert says(errors, "interrupted", "kept")
    assert "Traceback" not in errors
    result = command("scan", *given)
    assert result.exit_code == 0
    assert says(planted.lines_of(result.stdout)[0], "none of 50,000 documents")
