"""Excerpts of texts, and the lines that show what cleaning changed."""

import re

import pytest
from hypothesis import given, settings, strategies as st

from stickytoken import Cleaner
from stickytoken.cleaning import CleaningRules
from stickytoken.cleaning.excerpts import Piece, excerpt, word_diff

RULES = CleaningRules(words=("able", "contract"), specials=("[SEP]", "<|endoftext|>"))
CLEANER = Cleaner(RULES, unsafe_fixes=True)
FILLER = " ".join(f"word{number}" for number in range(40))


def lines(text):
    return word_diff(text, CLEANER.clean(text).removals)


def test_an_excerpt_marks_ranges_and_keeps_words_whole():
    text = "one two three four five six"
    pieces = excerpt(text, [(8, 13)], 5, 22)
    assert pieces == [Piece("…", False), Piece("three", True), Piece(" four", False), Piece("…", False)]


def test_an_excerpt_of_a_whole_text_has_no_ellipsis():
    assert excerpt("ab cd", [(3, 5)], 0, 99) == [Piece("ab ", False), Piece("cd", True)]


def test_an_excerpt_cuts_a_range_that_goes_on():
    assert excerpt("a bbbb", [(2, 6)], 0, 4) == [Piece("a ", False), Piece("bb", True), Piece("…", False)]


def test_an_excerpt_without_spaces_is_cut_between_characters():
    assert [piece.text for piece in excerpt("甲乙丙丁戊", [(2, 3)], 1, 4)] == ["…", "乙", "丙", "丁", "…"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the flow able able able able", "flagged token: the flow [-able able able able-]"),
        ("able able able able the flow", "flagged token: [-able able able able-] the flow"),
        ("air [SEP] flow", "special token: air [-[SEP]-] flow"),
        ("very very very very good", "repetition: very [-very very very-] good"),
        ("able x able y able z able", "flagged token: [-able-] x [-able-] y [-able-] z [-able-]"),
        ("a\n\tb [SEP]\r\nc", "special token: a b [-[SEP]-] c"),
    ],
)
def test_a_change_is_shown_with_its_cause_and_neighbours(text, line):
    assert lines(text) == [line]


def test_distant_changes_are_on_lines_of_their_own():
    first, second = lines(f"{FILLER} [SEP] {FILLER} [SEP] {FILLER}")
    assert first == second
    assert first.startswith("special token: …")
    assert first.endswith("word0 word1 word2 word3 word4 word5 word6 word7…")
    assert "word39 [-[SEP]-] word0" in first


def test_changes_with_different_causes_are_on_lines_of_their_own():
    assert lines("air [SEP] flow very very very very good") == [
        "special token: air [-[SEP]-] flow very…",
        "repetition: …flow very [-very very very-] good",
    ]


def test_a_long_removal_is_shown_by_its_beginning_and_end():
    (line,) = lines("air " + "able " * 1000)
    assert line.startswith("flagged token: air [-able able able")
    assert line.endswith("able able-]")
    assert "4,909 more characters" in line
    assert len(line) < 200


def test_changes_in_title_and_text_are_shown():
    parts = ["a title [SEP]", "able able able able and a text"]
    text = " ".join(parts)
    assert word_diff(text, CLEANER.clean(text).removals) == [
        "special token: a title [-[SEP]-] …",
        "flagged token: …[-able able able able-] and a text",
    ]


PARTS = (
    "able ",
    "able",
    "the ",
    "very ",
    "x",
    " ",
    ", ",
    "\n",
    "[SEP]",
    "[SE",
    "P]",
    "\u200b",
    "\x1b[1m",
    "禾",
)


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@settings(max_examples=100)
def test_every_removed_part_is_shown_once(text):
    cleaned = CLEANER.clean(text)
    removed = [" ".join(text[removal.start : removal.end].split()) for removal in cleaned.removals]
    shown = re.findall(r"\[-(.*?)-\]", "\n".join(word_diff(text, cleaned.removals)))
    assert [" ".join(part.split()) for part in shown] == removed
