"""The scan command: the answer for people, the formats, bad input, hostile names."""

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
from stickytoken import report

PLANTED = range(5, 9)


@pytest.fixture(scope="module")
def place(scanned_run, tmp_path_factory):
    """Documents as a table, beside nothing else."""
    folder = tmp_path_factory.mktemp("documents")
    texts = scanned.documents(60, PLANTED)
    rows = [
        {"_id": f"d{number}", "text": text, "source": "web" if number % 2 else "wiki"}
        for number, text in enumerate(texts)
    ]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own.txt").write_text("\n".join(texts) + "\n")
    return folder


def scan(run, documents, *options, folder=None):
    where = () if folder is None else ("--scan-folder", folder)
    return planted.command("scan", run, documents, *where, *options)


def test_every_format_has_the_documents_with_findings(scanned_run, place, tmp_path):
    options = ("--scan-folder", tmp_path / "scan", "--format")
    table = scan(scanned_run, place / "own.jsonl", *options, "table").stdout
    first, *_, last = planted.lines_of(table)
    assert first == "4 of 60 documents have copies of flagged tokens, special tokens or runs (6.67%)"
    assert "by source" in table
    assert f"[[{scanned.copies()}]]" in " ".join(table.split())
    assert last.startswith("60 documents of")
    document = planted.document(scan(scanned_run, place / "own.jsonl", *options, "json"))
    assert document["found"] == 4
    assert {row["id"] for row in document["found_documents"]} == {f"d{number}" for number in PLANTED}
    rows = list(csv.DictReader(io.StringIO(scan(scanned_run, place / "own.jsonl", *options, "csv").stdout)))
    assert {row["id"] for row in rows} == {f"d{number}" for number in PLANTED}
    assert {row["words"] for row in rows} == {scanned.STICKY}


def test_sarif_names_file_and_line(scanned_run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    out = tmp_path / "found.sarif"
    result = scan(scanned_run, place / "own.txt", "--out", out, folder=tmp_path / "scan")
    assert result.exit_code == 0, result.stderr
    run = json.loads(out.read_text())["runs"][0]
    found = [each["locations"][0]["physicalLocation"] for each in run["results"]]
    assert {each["artifactLocation"]["uri"] for each in found} == {"own.txt"}
    assert sorted(each["region"]["startLine"] for each in found) == [number + 1 for number in PLANTED]
    assert {each["ruleId"] for each in run["results"]} == {"document-copies"}


def test_effects_are_shown_and_reported(scanned_run, place):
    result = scan(scanned_run, place / "own.jsonl", "--effect")
    assert result.exit_code == 0, result.stderr
    assert "; 4 of them matter" in result.stdout
    assert "moves up" in result.stdout
    assert f"stickytoken report {scanned_run}" in result.stderr
    page = report(scanned_run, format="html")
    assert '<h2 id="documents">Documents with copies</h2>' in page
    assert f"<mark>{scanned.copies()}</mark>" in page
    assert "## Documents with copies" in report(scanned_run, format="md")
    (shown,) = json.loads(report(scanned_run, format="json"))["scans"]
    assert len(shown["documents"]) == 4


@pytest.mark.parametrize(("column", "value"), [("excerpt", None), ("share", "all"), ("moves_up", math.inf)])
def test_a_scan_that_somebody_changed_is_left_out_of_the_report(scanned_run, place, tmp_path, column, value):
    run = Path(shutil.copytree(scanned_run, tmp_path / "run"))
    assert scan(run, place / "own.jsonl", "--effect", folder=run / "scan-own").exit_code == 0
    documents = run / "scan-own" / "documents.parquet"
    pl.read_parquet(documents).with_columns(pl.lit(value).alias(column)).write_parquet(documents)
    page = report(run, format="json")
    assert "A scan is left out" in page
    assert f"in column '{column}'" in page


def test_hostile_ids_and_texts_are_shown_and_never_interpreted(scanned_run, tmp_path):
    rows = [
        {"id": name, "text": f"{name} {scanned.copies()} {name}", "source": name}
        for name in [*HOSTILE, "=1+1", "@cmd", 'a,b"c']
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--scan-folder", scanned_run / "scan-hostile", "--limit", 100)
    for output_format in ("table", "json", "sarif", "csv"):
        result = scan(scanned_run, tmp_path / "own.jsonl", *options, "--format", output_format)
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
    result = scan(scanned_run, tmp_path / "own.txt", folder=tmp_path / "scan")
    assert result.exit_code == 0
    assert "note: 1 record was skipped, without readable text" in result.stderr
    assert "own.txt, line 2: byte 7 (0xff) is not UTF-8" in result.stderr


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_scanned(scanned_run, tmp_path):
    texts = scanned.documents(500) * 100
    (tmp_path / "own.txt").write_text("\n".join(texts) + "\n")
    place = (scanned_run, tmp_path / "own.txt", "--scan-folder", tmp_path / "scan", "--set", "workers=2")
    command = [sys.executable, "-m", "stickytoken", "scan", *map(str, place)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        shards = tmp_path / "scan" / "shards"
        while process.poll() is None and (not shards.is_dir() or len(list(shards.iterdir())) < 4):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "interrupted: finished shards are kept: " in errors
    assert "Traceback" not in errors
    result = scan(scanned_run, tmp_path / "own.txt", folder=tmp_path / "scan")
    assert result.exit_code == 0
    assert planted.lines_of(result.stdout)[0].startswith("none of 50,000 documents")
