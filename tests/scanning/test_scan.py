"""Scans: what is found, once and in order, and the command."""

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
from pathlib import Path

import polars as pl
import pytest

import planted
import scanned
from hostile import HOSTILE, assert_harmless
from naming import naming, says
from planted import command
from stickytoken import Cleaner, open_run, open_scan, report, scan
from stickytoken.errors import InputError, RunError
from stickytoken.findings import sarif
from stickytoken.scanning import _search
from stickytoken.scanning.results import scans_in
from stickytoken.scanning.wording import RULES, headline, scan_findings


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


def test_blank_documents_are_counted_and_nothing_else_is_no_collection(scanned_run, tmp_path):
    rows = [{"text": " ", "body_html": scanned.copies()}] * 3
    assert says(scan(scanned_run, [*rows, {"text": "a text"}]).result.reading, "4 records", "3", "blank")
    with pytest.raises(InputError, match=naming("3", "blank", "text", "body_html")):
        scan(scanned_run, rows)
    (tmp_path / "binary.txt").write_bytes(b"\xff\n")
    (tmp_path / "blank.csv").write_text('text\n" "\n')
    with pytest.raises(InputError, match=naming("1", "skipped", "binary.txt", "1", "blank")):
        scan(scanned_run, tmp_path)


def test_further_words_are_findings(scanned_run):
    text = f"{'zebra ' * 3} a text"
    assert scan(scanned_run, [text]).result.found == 0
    found = scan(scanned_run, [text, "zebra zebra zebra zebra"], words=["zebra"])
    assert found.documents["kinds"].to_list()[-1] == ["flagged"]


def test_a_folder_of_something_else_is_refused(scanned_run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=naming(tmp_path / "own", "scan")):
        scan(scanned_run, ["a text"], out=tmp_path / "own")


def test_nothing_to_scan_and_wrong_options_are_errors(scanned_run, write):
    with pytest.raises(InputError, match="empty"):
        scan(scanned_run, [])
    with pytest.raises(InputError, match=naming("2 records", "line 1")):
        scan(scanned_run, write("a.txt", b"\xff\n\xfe\xfe\n"))
    for name, value in (("workers", 0), ("column", 3)):
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


def test_the_worst_documents_have_the_largest_share_of_copies_and_more_than_suspected_ones(scanned_run):
    long = scanned.documents(1)[0]  # with a smaller share of copies than the guess
    texts = [GUESS, f"{long} {scanned.copies()}", scanned.copies(), f"a text {scanned.copies(4)}"]
    assert scan(scanned_run, texts).worst["number"].to_list() == [2, 3, 1, 0]


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


def test_batches_end_at_a_number_of_documents_or_a_size(scanned_run, tmp_path, monkeypatch):
    monkeypatch.setattr(_search, "_CHARACTERS", 5000)
    for name, texts, count in (("many", ["x"] * 2500, 3), ("large", ["x" * 9000] * 2, 2)):
        scan(scanned_run, texts, out=tmp_path / name, workers=1)
        assert len(list((tmp_path / name / "shards").iterdir())) == count


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


def test_a_scan_by_rules_names_the_file_and_the_model(scanned_run, rules_file):
    summary = scan(rules_file, ["a text"]).summary()
    assert summary["run"] == str(rules_file)
    assert summary["model"] == open_run(scanned_run).model_name
    assert summary["scan"] is None


def test_the_command_scans_by_rules_and_writes_only_on_request(rules_file, write, tmp_path):
    documents = write("own.txt", "\n".join(scanned.documents(60, range(5))) + "\n")
    before = set(tmp_path.iterdir())
    result = command("scan", rules_file, documents)
    assert result.exit_code == 0, result.stderr
    assert says(result.stdout, "5 of 60 documents", "flagged token: 5")
    assert set(tmp_path.iterdir()) == before
    assert command("scan", rules_file, documents, "--out", tmp_path / "scan").exit_code == 0
    assert open_scan(tmp_path / "scan").record.run == str(rules_file)


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


def test_progress_counts_documents_from_the_start(scanned_run):
    steps = []
    scan(scanned_run, scanned.documents(40), workers=1, progress=steps.append)
    assert [step.done for step in steps] == [0, 40, 40]
    assert {step.unit for step in steps} == {"documents"}


@pytest.mark.parametrize("option", ["--out={}", "--set=write-known={}"])
def test_a_file_in_no_folder_is_refused_before_anything_is_searched(scanned_run, place, tmp_path, option):
    file = tmp_path / "absent" / "found.json"
    given = (scanned_run, place / "own.txt", "--scan-folder", tmp_path / "scan", option.format(file))
    planted.assert_refused("scan", *given, saying=naming(file.parent))
    assert list(tmp_path.iterdir()) == []


def test_a_limit_beyond_every_table_lists_all(scanned_run, place, tmp_path):
    beyond = "99999999999999999999999"
    options = ("--scan-folder", tmp_path / "scan", "--set", f"limit={beyond}")
    assert planted.command("scan", scanned_run, place / "own.txt", *options).exit_code == 0
    listed = planted.command("show", scanned_run, "--limit", beyond)
    assert listed.exit_code == 0
    assert f"{len(open_run(scanned_run).tokens):,}" in listed.stdout
    planted.assert_refused("show", scanned_run, "--limit", "0", status=2, saying=naming("--limit", 1))


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
def test_a_scan_in_the_run_folder_is_reported(scanned_run, place):
    result = command("scan", scanned_run, place / "own.jsonl")
    assert result.exit_code == 0, result.stderr
    assert f"stickytoken report {scanned_run}" in result.stderr
    page = report(scanned_run, format="html")
    assert '<h2 id="documents">Documents with copies</h2>' in page
    assert f"<mark>{scanned.copies()}</mark>" in page
    assert "</bdi> × 8; " in page  # the token is isolated from the numbers after it
    assert "## Documents with copies" in report(scanned_run, format="md")
    (scan_record,) = json.loads(report(scanned_run, format="json"))["scans"]
    assert len(scan_record["documents"]) == 4


@pytest.mark.parametrize(("column", "value"), [("excerpt", None), ("share", math.inf)])
def test_a_scan_that_somebody_changed_is_left_out_of_the_report(scanned_run, place, tmp_path, column, value):
    run = Path(shutil.copytree(scanned_run, tmp_path / "run"))
    assert command("scan", run, place / "own.jsonl", "--scan-folder", run / "scan-own").exit_code == 0
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
