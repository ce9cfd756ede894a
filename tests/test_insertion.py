"""Copies of a token in a sentence, as text and among token ids."""

import pytest
from hypothesis import given, strategies as st

from naming import naming
from stickytoken.errors import InputError
from stickytoken.insertion import (
    Joining,
    Placement,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
    insert_as_ids,
    insert_as_text,
    place_as_ids,
    place_as_text,
)

# Nothing that a carrier of these tests can hold.
MARK = "\N{BLACK STAR}"
MARK_ID = 999_999

ids = st.integers(0, 1000)
carriers = st.builds(
    TokenizedText,
    head=st.lists(ids, max_size=3).map(tuple),
    words=st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=6).map(tuple),
)


@st.composite
def paths(draw, words, added=1):
    """A path that stays inside: gap k lies between 0 and the words of step k."""
    counts = draw(st.integers(1, 5))
    return [draw(st.integers(0, words + step * added)) for step in range(counts)]


PREFIX, SUFFIX, RANDOM = Placement
GLUED, WORDS, ATTACHED = Joining


@pytest.mark.parametrize(
    ("token", "text", "placement", "path", "expected"),
    [
        (Token(5, "text"), "a boat", PREFIX, (), ["texta boat", "texttexta boat"]),
        (Token(5, " tip"), "a boat", SUFFIX, (), ["a boat tip", "a boat tip tip"]),
        (Token(5, "x"), "a boat", RANDOM, (0, 3, 1), ["x a boat", "x a boat x", "x x a boat x"]),
        (Token(5, "x"), "  a \t red\n\nboat ", RANDOM, (3,), ["a red boat x"]),
        # A copy with white space inside is several words at the next step.
        (Token(5, " to do"), "boat", RANDOM, (1, 3), ["boat  to do", "boat to do  to do"]),
        (Token(5, "x"), "", PREFIX, (), ["x", "xx"]),
        (Token(5, "x"), "", SUFFIX, (), ["x", "xx"]),
        (Token(5, "x"), "", RANDOM, (0, 1), ["x", "x x"]),
        (Token(3, " ing ", ATTACHED), "a boat", SUFFIX, (), ["a boat ing", "a boat inging"]),
        (Token(3, " ing ", ATTACHED), "a boat", PREFIX, (), ["ing a boat", "inging a boat"]),
        (
            Token(3, " ing ", ATTACHED),
            "a red boat",
            RANDOM,
            (0, 2, 5),
            ["inga red boat", "inga reding boat", "inga reding boating"],
        ),
        (Token(3, " ing ", WORDS), "a boat", RANDOM, (0, 3), ["ing a boat", "ing a boat ing"]),
        (Token(3, " ing ", WORDS), "a boat", PREFIX, (), ["ing a boat", "ing ing a boat"]),
    ],
)
def test_copies_in_a_text(token, text, placement, path, expected):
    counts = len(expected)
    assert insert_as_text(token, text, placement, counts, path) == expected
    assert insert_as_text(token, text, placement, counts, (*path, 99)) == expected
    assert copies_as_text(token, text, placement, counts, path) == expected[-1]
    assert insert_as_text(token, text, placement, 0, path) == []


@pytest.mark.parametrize(
    ("placement", "path", "expected"),
    [
        (PREFIX, (), [(1, 2, 7, 10, 11, 12, 8), (1, 2, 7, 7, 10, 11, 12, 8)]),
        (SUFFIX, (), [(1, 2, 10, 11, 12, 7, 8), (1, 2, 10, 11, 12, 7, 7, 8)]),
        (RANDOM, (1, 3), [(1, 2, 10, 7, 11, 12, 8), (1, 2, 10, 7, 11, 12, 7, 8)]),
    ],
)
def test_ids_go_between_words_behind_the_head_and_before_the_tail(placement, path, expected):
    carrier = TokenizedText(head=(1, 2), words=((10,), (11, 12)), tail=(8,))
    assert carrier.ids == (1, 2, 10, 11, 12, 8)
    assert insert_as_ids(Token(7, "x"), carrier, placement, 2, (*path, 99)) == expected
    assert copies_as_ids(Token(7, "x"), carrier, placement, 2, path) == expected[-1]
    assert insert_as_ids(Token(7, "x"), carrier, placement, 0) == []


@given(st.data(), carriers, st.sampled_from(list(Placement)))
def test_ids_insertion_puts_in_exactly_n_copies_and_leaves_the_rest(data, carrier, placement):
    path = data.draw(paths(len(carrier.words)))
    variants = insert_as_ids(Token(MARK_ID, MARK), carrier, placement, len(path), path)
    assert len(variants) == len(path)
    for copies, probe in enumerate(variants, start=1):
        assert probe.count(MARK_ID) == copies
        assert tuple(token_id for token_id in probe if token_id != MARK_ID) == carrier.ids
        assert probe[: len(carrier.head)] == carrier.head


INSERTIONS = [
    pytest.param(insert_as_text, "a red boat", id="text"),
    pytest.param(insert_as_ids, TokenizedText(head=(), words=((1,), (2,), (3,))), id="ids"),
]


@pytest.mark.parametrize(("insert", "carrier"), INSERTIONS)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ((), naming(2, 0)),
        ((1,), naming(2, 1)),
        ((4, 0), naming(4, 3)),
        ((-1, 0), naming(-1, 3)),
        ((0, 5), naming(5, 4)),
    ],
)
def test_a_path_that_cannot_be_followed_is_refused(insert, carrier, path, said):
    with pytest.raises(InputError, match=said):
        insert(Token(5, "x"), carrier, RANDOM, 2, path)


@pytest.mark.parametrize(
    ("joining", "before", "behind"),
    [(GLUED, "xya b", "a bxy"), (WORDS, "x y a b", "a b x y"), (ATTACHED, "xy a b", "a b xy")],
)
def test_one_copy_of_each_of_several_tokens(joining, before, behind):
    assert place_as_text(["x", "y"], "a b", PREFIX, joining=joining) == before
    assert place_as_text(["x", "y"], "a b", SUFFIX, joining=joining) == behind
    assert place_as_text(["x"], "", SUFFIX, joining=joining) == "x"
    text = TokenizedText((9,), ((1, 2), (3,)), (5,))
    assert place_as_ids([7, 8], text, PREFIX) == (9, 7, 8, 1, 2, 3, 5)
    assert place_as_ids([7, 8], text, SUFFIX) == (9, 1, 2, 3, 7, 8, 5)
    assert place_as_ids([7, 8], text, RANDOM, (1, 0)) == (9, 8, 1, 2, 7, 3, 5)
