"""Tables in a narrow terminal."""

import re

import pytest

from stickytoken.cli.output.console import print_table

STYLES = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = ("measure", "layer", "value", "low", "high", "benign low", "benign high", "deviations", "outside")
ROWS = [
    ["embedding cosine to unused", 3, -0.1961, -0.1971, 0.1951, -0.4417, 0.4518, 1.1472, "no"],
    ["attributed to copies", None, 0.4423, 0.4074, 0.4773, -0.0883, 0.2321, 829.5, "yes"],
]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Print the table in a terminal of a given width and return its lines, without styles."""

    def at(width):
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(width))
        print_table("measures", COLUMNS, ROWS)
        return STYLES.sub("", capsys.readouterr().out).splitlines()

    return at


def test_a_narrow_terminal_breaks_text_between_words_and_never_a_number(printed):
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    for row in ROWS:
        assert set(row[0].split()) <= set(words)
        assert {f"{value:.4f}" for value in row[2:7]} <= set(words)
    assert {"829.50", "deviations", "outside", "benign"} <= set(words)


def test_a_wide_terminal_leaves_a_table_on_one_line_per_row(printed):
    lines = printed(120)
    assert sum("benign low  benign high" in line for line in lines) == 1
    assert sum("embedding cosine to unused" in line for line in lines) == 1
