"""Outputs in the README and in the how-to pages: a program printed them, and a record has it.

The tutorial is executed in test_tutorial.py; its outputs are compared there.
"""

import json

import pytest

from build import ROOT
from how_to import how_to_pages, text_of
from report import DOCUMENTS, RECORD, shown

COMMANDS = json.loads(RECORD.read_text("utf-8"))["commands"]
SHOWN = [each for path in DOCUMENTS for each in shown(path.read_text("utf-8"))]


def appear_in_order(lines, printed):
    """Whether all lines were printed in this order; `...` stands for lines that are left out."""
    rest = iter(printed)
    return all(any(line.rstrip() == other.rstrip() for other in rest) for line in lines if line != "...")


def test_lines_must_have_been_printed_in_their_order():
    assert appear_in_order(["a", "...", "c"], ["a", "b", "c"])
    assert not appear_in_order(["c", "a"], ["a", "b", "c"])
    assert not appear_in_order(["d"], ["a", "b", "c"])


@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[each[0] for each in SHOWN])
def test_what_a_command_is_said_to_print_was_printed(command, lines):
    record = COMMANDS[command]
    assert record["status"] == 0
    assert lines
    # Costs and notes are printed before the result.
    assert appear_in_order(lines, record["stderr"] + record["stdout"])


def test_the_record_has_no_other_commands():
    assert set(COMMANDS) == {command for command, _ in SHOWN}


def test_every_page_that_shows_outputs_is_recorded():
    pages = [page for page in how_to_pages() if shown(text_of(page))]
    assert pages == [path.name for path in DOCUMENTS if path != ROOT / "README.md"]
