"""What is printed: tables, progress and notes; and what a process sets up for the libraries underneath."""

import csv
import io
import logging
import re
import warnings

import polars as pl
import pytest

import planted
from hostile import HOSTILE, assert_harmless
from stickytoken.cli import console
from stickytoken.cli.console import Verbosity, late_progress, progress_bar, verbosity
from stickytoken.errors import StickyTokenWarning
from stickytoken.measurement.engine import Progress

STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


# Tables


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_breaks_text_between_words_and_never_a_number(width, monkeypatch, capsys):
    known = ("layer", "value", "low", "high", "benign low", "benign high", "deviations")
    rows = [
        ["embedding cosine to unused", 3, -0.1961, -0.1971, 0.1951, -0.4417, 0.4518, 1.1472, "no"],
        ["attributed to copies", None, 0.4423, 0.4074, 0.4773, -0.0883, 0.2321, 829.5, "yes"],
    ]
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    console.print_table("measures", ("measure", *known, "outside"), rows)
    lines = STYLES.sub("", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    words = set(" ".join(lines).split())
    for row in rows:
        assert words >= {*row[0].split(), *(f"{value:.4f}" for value in row[2:7])}
    assert words >= {"829.50", "deviations", "outside", "benign"}
    on_one_line = [line for line in lines if "benign low  benign high" in line]
    assert len(on_one_line) == (width > 80)


def test_cells_that_a_spreadsheet_would_compute_or_a_terminal_obey_are_harmless(capsys):
    texts = ["=1+1", "+1", "-1", "@cmd", *HOSTILE, "plain"]
    console.print_csv(pl.DataFrame({"token": texts, "decoded": texts}))
    written = capsys.readouterr().out
    assert_harmless(written)
    cells = [row["token"] for row in csv.DictReader(io.StringIO(written))]
    assert cells == ["'=1+1", "'+1", "'-1", "'@cmd", *HOSTILE.values(), "plain"]


# Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

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


def test_a_log_file_gets_a_line_every_interval_and_one_when_a_stage_ends(capsys, clock):
    with progress_bar(interval=30) as progress:
        for done in range(101):
            progress(Progress("score", done, 100, done, 500 * done))
            clock.now += 1 if done < 100 else 0
        progress(Progress("validate", 0, 7))
        clock.now += 2
        progress(Progress("validate", 7, 7, 7))
    assert lines(capsys) == [
        "score: 30 of 100 after 0:00:30, 500 texts/s, ETA 0:01:10",
        "score: 60 of 100 after 0:01:00, 500 texts/s, ETA 0:00:40",
        "score: 90 of 100 after 0:01:30, 500 texts/s, ETA 0:00:10",
        "score: 100 of 100 in 100 s, 500 texts/s",
        "validate: 7 of 7 in 2 s, 3.5/s",
    ]


def test_what_an_earlier_session_computed_does_not_shorten_the_eta(capsys, clock):
    with progress_bar(interval=10) as progress:
        for seconds, done, computed in ((0, 0, 0), (0, 900, 0), (10, 900, 0), (10, 910, 10)):
            clock.now += seconds
            progress(Progress("score", done, 1000, computed=computed, sequences=4 * computed))
    assert lines(capsys) == [
        "score: 900 of 1,000 after 0:00:10, ETA ?",
        "score: 910 of 1,000 after 0:00:20, 2 texts/s, ETA 0:03:00",
    ]


def test_a_terminal_gets_a_bar_with_an_eta(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as progress:
        progress(Progress("score", 0, 100))
        clock.now += 60
        progress(Progress("score", 25, 100, 25, 600))
    shown = STYLES.sub("", capsys.readouterr().err)
    assert re.search(r"score .* 25/100 .*ETA 0:03:00 10 texts/s", shown)


def test_a_stage_that_ends_soon_is_not_shown_and_a_long_one_is(capsys, clock):
    with late_progress(3) as progress:
        for stage, seconds in (("first text", 0.5), ("second text", 1)):
            for done in (1, 2, 3, 4):
                clock.now += seconds
                progress(Progress(stage, done, 4, done))
    # It is shown from the first second on, when a quarter is done.
    assert lines(capsys) == ["second text: 4 of 4 in 3 s, 1.0/s"]


# Verbosity


def test_quiet_prints_results_and_errors_only(bert_folder, sentence_file, tmp_path):
    arguments = ("detect", bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9)
    loud = planted.command(*arguments, "--out", tmp_path / "run", "-v")
    again = planted.command(*arguments, "--out", tmp_path / "run", "--quiet")
    for said in (
        f"model: {bert_folder} (folder), weights ",
        "\ncomputes: on cpu in float32, inputs of at most 64 tokens, vectors of ",
        "batches of at most 1024 tokens on cpu",
        "note:",
        "report:",
    ):
        assert said in loud.stderr
    assert (again.exit_code, again.stdout, again.stderr) == (0, loud.stdout, "")
    planted.refused("detect", tmp_path / "absent", "--quiet", saying="^error: no folder")


SHORT = "note: memory is short"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (Verbosity.QUIET, []),
        (Verbosity.NORMAL, [SHORT, "note: a guess"]),
        (
            Verbosity.VERBOSE,
            [SHORT, "stickytoken: 3 layers", "another: loaded", "note: a guess", "FutureWarning: old"],
        ),
    ],
)
def test_log_records_and_warnings_are_lines(capsys, clock, level, shown):
    with warnings.catch_warnings(), verbosity(level), progress_bar(interval=0) as progress:
        console.show_warnings_as_notes()
        logging.getLogger("stickytoken.encoders").warning("memory is %s", "short")
        logging.getLogger("stickytoken.encoders").info("3 layers")
        logging.getLogger("another.library").info("loaded")
        warnings.warn("a guess", StickyTokenWarning, stacklevel=1)
        warnings.warn("old", FutureWarning, stacklevel=1)
        progress(Progress("score", 2, 2, 2, 2))
    logging.getLogger("stickytoken.encoders").info("afterwards")
    if level is not Verbosity.QUIET:
        shown = [*shown, "score: 2 of 2 in 0 s"]
    assert lines(capsys) == shown


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
    assert planted.program(code, "--version").stdout.split()[-1] == "PASSIVE"
