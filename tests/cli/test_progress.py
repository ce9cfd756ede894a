"""Progress on stderr: bars on a terminal, lines in a log file, nothing when quiet."""

import re

import pytest

from stickytoken.cli.output import progress as module
from stickytoken.cli.output.console import Verbosity, verbosity
from stickytoken.cli.output.progress import counted, late_progress, progress_bar
from stickytoken.measurement.stage import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "perf_counter", lambda: Clock.now)
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
        progress(Progress("score", 0, 1000))
        progress(Progress("score", 900, 1000))
        clock.now += 10
        progress(Progress("score", 900, 1000))
        clock.now += 10
        progress(Progress("score", 910, 1000, computed=10, sequences=40))
    assert lines(capsys) == [
        "score: 900 of 1,000 after 0:00:10, ETA ?",
        "score: 910 of 1,000 after 0:00:20, 2 texts/s, ETA 0:03:00",
    ]


def test_a_count_has_an_eta_too(capsys, clock, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 30)
    with counted("texts") as progress:
        progress(0, 10)
        clock.now += 40
        progress(4, 10)
    assert lines(capsys) == ["texts: 4 of 10 after 0:00:40, 0.1/s, ETA 0:01:00"]


def test_a_terminal_gets_a_bar_with_an_eta(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as progress:
        progress(Progress("score", 0, 100))
        clock.now += 60
        progress(Progress("score", 25, 100, 25, 600))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"score .* 25/100 .*ETA 0:03:00 10 texts/s", shown)


def test_quiet_shows_none(capsys, clock):
    with verbosity(Verbosity.QUIET), progress_bar(interval=0) as progress:
        progress(Progress("score", 1, 2, 1, 1))
        progress(Progress("score", 2, 2, 2, 2))
    assert lines(capsys) == []


def test_a_stage_that_ends_soon_is_not_shown_and_a_long_one_is(capsys, clock):
    with late_progress(3) as progress:
        for done in (1, 2, 3, 4):
            clock.now += 0.5
            progress(Progress("first text", done, 4, done))
        for done in (1, 2, 3, 4):
            clock.now += 1
            progress(Progress("second text", done, 4, done))
    # It is shown from the first second on, when a quarter is done.
    assert lines(capsys) == ["second text: 4 of 4 in 3 s, 1.0/s"]
