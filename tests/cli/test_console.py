"""What is printed: tables, progress, notes, hostile text; and what a process sets up for libraries."""

import csv
import io
import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest
from tokenizers import Tokenizer, models

import planted
from hostile import HOSTILE, assert_harmless
from naming import naming
from stickytoken import open_run
from stickytoken.cli import console
from stickytoken.cli.console import Verbosity, late_progress, progress_bar, setting_verbosity
from stickytoken.cli.main import prepare_stream
from stickytoken.errors import StickyTokenWarning
from stickytoken.measurement.engine import Progress

STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_never_breaks_a_number(width, monkeypatch, capsys):
    known_names = ("layer", "value", "low", "high", "benign low", "benign high", "deviations")
    rows = [
        ["embedding cosine to unused", 3, -0.1961, -0.1971, 0.1951, -0.4417, 0.4518, 1.1472, "no"],
        ["attributed to copies", None, 0.4423, 0.4074, 0.4773, -0.0883, 0.2321, 829.5, "yes"],
    ]
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    console.print_table("measures", ("measure", *known_names, "outside"), rows)
    lines = STYLES.sub("", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    words = set(" ".join(lines).split())
    for row in rows:
        assert words >= {*row[0].split(), *(f"{value:.4f}" for value in row[2:7])}
    assert words >= {"829.50", "deviations", "outside", "benign"}
    assert len([line for line in lines if "benign low  benign high" in line]) == (width > 80)


def test_cells_are_harmless_in_spreadsheets_and_terminals(capsys):
    texts = ["=1+1", "+1", "-1", "@cmd", *HOSTILE, "plain"]
    console.print_csv(pl.DataFrame({"token": texts, "decoded": texts}))
    written = capsys.readouterr().out
    assert_harmless(written)
    cells = [row["token"] for row in csv.DictReader(io.StringIO(written))]
    assert cells == ["'=1+1", "'+1", "'-1", "'@cmd", *HOSTILE.values(), "plain"]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(console.time, "perf_counter", lambda: Clock.now)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return Clock


def lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_log_gets_a_line_per_interval_and_at_the_end_of_a_stage(capsys, clock):
    with progress_bar(interval=30) as progress:
        for done in range(101):
            progress(Progress("score", done, 100, done, 500 * done, unit="tokens"))
            clock.now += 1 if done < 100 else 0
        progress(Progress("validate", 0, 7))
        clock.now += 2
        progress(Progress("validate", 7, 7, 7))
    assert lines(capsys) == [
        "score: 30 of 100 after 0:00:30, 1.0 tokens/s, ETA 0:01:10",
        "score: 60 of 100 after 0:01:00, 1.0 tokens/s, ETA 0:00:40",
        "score: 90 of 100 after 0:01:30, 1.0 tokens/s, ETA 0:00:10",
        "score: 100 of 100 in 100 s, 1.0 tokens/s",
        "validate: 7 of 7 in 2 s",
    ]
    # What an earlier session computed does not shorten the estimate.
    with progress_bar(interval=10) as progress:
        for seconds, done, computed in ((0, 0, 0), (0, 900, 0), (10, 900, 0), (10, 910, 10)):
            clock.now += seconds
            progress(Progress("score", done, 1000, computed=computed, sequences=computed))
    assert lines(capsys) == [
        "score: 900 of 1,000 after 0:00:10, ETA ?",
        "score: 910 of 1,000 after 0:00:20, 0.5 texts/s, ETA 0:03:00",
    ]


def test_a_stage_that_comes_again_is_timed_from_its_second_start(capsys, clock):
    with progress_bar() as progress:
        for _ in range(2):
            progress(Progress("try", 0, 4, unit="tokens"))
            clock.now += 2
            progress(Progress("try", 4, 4, 4, unit="tokens"))
            clock.now += 100
    assert lines(capsys) == ["try: 4 of 4 in 2 s, 2.0 tokens/s"] * 2


def test_a_rate_counts_only_the_work_since_the_first_report(capsys, clock):
    with progress_bar() as progress:
        progress(Progress("scan", 400, 500, 400, unit="documents"))
        clock.now += 10
        progress(Progress("scan", 500, 500, 500, unit="documents"))
    assert lines(capsys) == ["scan: 500 of 500 in 10 s, 10 documents/s"]


def test_a_stage_of_less_than_a_second_has_no_rate(capsys, clock):
    with progress_bar() as progress:
        progress(Progress("scan", 0, 1, unit="documents"))
        clock.now += 0.00005
        progress(Progress("scan", 400, 400, 400, unit="documents"))
        progress(Progress("score", 0, 8))
        clock.now += 0.5
        progress(Progress("score", 8, 8, 8, sequences=900))
    assert lines(capsys) == ["scan: 400 of 400 in 0 s", "score: 8 of 8 in 0 s"]


def test_a_rate_without_a_unit_is_not_shown(capsys, clock):
    with progress_bar() as progress:
        progress(Progress("rows", 0, 8))
        clock.now += 2
        progress(Progress("rows", 8, 8, 8))
    assert lines(capsys) == ["rows: 8 of 8 in 2 s"]


def test_a_terminal_gets_a_bar_with_an_eta(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as progress:
        progress(Progress("score", 0, 100))
        clock.now += 60
        progress(Progress("score", 25, 100, 25, 25))
    assert re.search(r"score .* 25/100 .*ETA 0:03:00 0.4 texts/s", STYLES.sub("", capsys.readouterr().err))


def test_a_note_about_a_finished_stage_adds_no_bar(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as progress:
        progress(Progress("special-8", 0, 3))
        progress(Progress("special-8", 3, 3, 3))
        for token in ("[CLS]", "[SEP]"):
            progress(Progress("special-8", 3, 3, note=f"{token} may push"))
        (bars,) = console._BARS
        assert [task.description for task in bars.tasks] == ["special-8"]
    written = capsys.readouterr().err
    assert "[CLS] may push" in written
    assert "[SEP] may push" in written


def test_a_stage_that_ends_soon_is_not_shown_and_a_long_one_is(capsys, clock):
    with late_progress(3) as progress:
        for stage, seconds in (("first text", 0.5), ("second text", 1)):
            for done in (1, 2, 3, 4):
                clock.now += seconds
                progress(Progress(stage, done, 4, done))
    # It is shown from the first second on, when a quarter is done.
    assert lines(capsys) == ["second text: 4 of 4 in 3 s"]


@pytest.mark.slow
def test_quiet_prints_results_and_errors_only(bert_folder, sentence_file, tmp_path):
    arguments = ("detect", bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9)
    loud = planted.command(*arguments, "--out", tmp_path / "run", "-v")
    again = planted.command(*arguments, "--out", tmp_path / "run", "--quiet")
    computes = "\ncomputes: on cpu in float32, inputs of at most 64 tokens, vectors of "
    batches = "batches of at most 1024 tokens on cpu"
    for phrase in (f"model: {bert_folder} (folder), weights ", computes, batches, "note:", "report:"):
        assert phrase in loud.stderr
    assert (again.exit_code, again.stdout, again.stderr) == (0, loud.stdout, "")
    planted.assert_refused("detect", tmp_path / "absent", "--quiet", saying=naming(tmp_path / "absent"))


TOLD = ["note: memory is short", "stickytoken: 3 layers", "another: loaded"]
TOLD += ["note: a guess", "FutureWarning: old"]


@pytest.mark.parametrize(
    ("level", "printed"), [(Verbosity.QUIET, []), (Verbosity.NORMAL, TOLD[::3]), (Verbosity.VERBOSE, TOLD)]
)
def test_log_records_and_warnings_are_lines(capsys, clock, level, printed):
    with warnings.catch_warnings(), setting_verbosity(level), progress_bar(interval=0) as progress:
        console.show_warnings_as_notes()
        logging.getLogger("stickytoken.encoders").warning("memory is %s", "short")
        logging.getLogger("stickytoken.encoders").info("3 layers")
        logging.getLogger("another.library").info("loaded")
        warnings.warn("a guess", StickyTokenWarning, stacklevel=1)
        warnings.warn("old", FutureWarning, stacklevel=1)
        progress(Progress("score", 2, 2, 2, 2))
    logging.getLogger("stickytoken.encoders").info("afterwards")
    if level is not Verbosity.QUIET:
        printed = [*printed, "score: 2 of 2 in 0 s"]
    assert lines(capsys) == printed


def test_threads_that_wait_for_one_another_sleep(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    code = """
import os
from stickytoken.cli.main import main
try:
    main()
except SystemExit:
    print(os.environ["OMP_WAIT_POLICY"])
"""
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, check=True)
    assert done.stdout.split()[-1] == b"PASSIVE"


MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(("utf8", "written"), [(False, b"\\u2212"), (True, MINUS.encode())])
def test_output_never_fails_for_its_encoding(utf8, written):
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="cp1252")
    prepare_stream(stream, utf8=utf8)
    stream.write(MINUS)
    stream.flush()
    assert buffer.getvalue() == written


def test_hostile_vocabulary_is_printed_escaped_by_tokens(tmp_path):
    vocabulary = {"[UNK]": 0} | {text: token_id for token_id, text in enumerate(HOSTILE, start=1)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    result = planted.command("tokens", tmp_path, "--category", "OK", "--limit", "99")
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    for escaped in HOSTILE.values():
        assert len(re.findall(rf"(?<!\S){re.escape(escaped)}(?!\S)", result.stdout)) == 2, escaped


@pytest.mark.parametrize("filters", [[], ["--verdict", "sticky"]], ids=["summary", "list"])
def test_hostile_tokens_of_a_run_are_printed_escaped_by_show(planted_run, tmp_path, filters):
    run = Path(shutil.copytree(planted_run, tmp_path / "run"))  # then somebody else changed it
    table = pl.read_parquet(run / "tokens.parquet").head(len(HOSTILE))
    texts = pl.Series(list(HOSTILE))
    table = table.with_columns(token=texts, decoded=texts, verdict=pl.lit("sticky"))
    planted.replace_tokens(run, table)
    model = open_run(run).record.model.model_dump(mode="json")
    planted.edit_record(run, model=model | {"name": "\x1b[31m[bold]evil\u202e"})
    result = planted.command("show", run, *filters)
    assert result.exit_code == 0
    assert_harmless(result.stdout)
    assert filters or r"\x1b[31m[bold]evil\u202e: " in result.stdout
    listed = [escaped for escaped in HOSTILE.values() if f" {escaped} " in result.stdout]
    assert len(listed) == (len(HOSTILE) if filters else 20)
    document = planted.document(planted.command("show", run, *filters, "--format", "json"))
    assert {row["token"] for row in document["tokens" if filters else "sticky"]} == set(HOSTILE)
    terminal = planted.command("show", run, *filters, FORCE_COLOR="1", COLUMNS="120").stdout
    styles = r"\x1b\[[0-9;]*m"
    assert_harmless(re.sub(styles, "", terminal))
    assert set(re.findall(styles, terminal)) <= {"\x1b[1m", "\x1b[0m", "\x1b[3m", "\x1b[1;3m"}
    assert [escaped for escaped in HOSTILE.values() if escaped in terminal] == listed


def test_hostile_arguments_are_escaped_in_errors(planted_folder, sentence_file, tmp_path):
    hostile = "\x1b[31m[bold]\u202e\nno"
    arguments = ("--sentences", sentence_file, *planted.PROBE_OPTIONS)
    (tmp_path / "in" / hostile).mkdir(parents=True)
    for result in (
        planted.command("detect", planted_folder, "--sentences", tmp_path / hostile),
        planted.command("show", tmp_path / "in" / hostile),
        planted.command("probe", planted_folder, hostile, *arguments),
    ):
        assert result.exit_code == 1
        *_, error = planted.lines_of(result.stderr)
        assert error.startswith("error: ")
        assert r"ld]\u202e" in error
        assert_harmless(error)
