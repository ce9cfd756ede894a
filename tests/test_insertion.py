"""Copies of a token in a sentence, as text and among token ids."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.errors import InputError
from stickytoken.insertion import (
    Insertion,
    Joining,
    Placement,
    Token,
    TokenizedText,
    insert_as_ids,
    insert_as_text,
    place_as_ids,
    place_as_text,
)

# Nothing that a carrier of these tests can hold.
MARK = "\N{BLACK STAR}"
MARK_ID = 999_999

token_texts = st.sampled_from([MARK, f" {MARK}", f"{MARK}{MARK}", f" {MARK}x"])
carrier_texts = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters=MARK, exclude_categories=("Cs",)), max_size=40
)
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


def without_mark(texts):
    return [text for text in texts if MARK not in text]


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(element in rest for element in part)


# As text.


def test_prefix_copies_are_joined_in_front_without_a_separator():
    found = insert_as_text(Token(5, "text"), "a red boat", Placement.PREFIX, 3)
    assert found == ["texta red boat", "texttexta red boat", "texttexttexta red boat"]


def test_suffix_copies_are_joined_behind_without_a_separator():
    found = insert_as_text(Token(5, " tip"), "a red boat", Placement.SUFFIX, 2)
    assert found == ["a red boat tip", "a red boat tip tip"]


def test_random_copies_become_words_of_their_own_at_the_gaps_of_the_path():
    found = insert_as_text(Token(5, "text"), "a red boat", Placement.RANDOM, 3, path=(0, 4, 2))
    assert found == ["text a red boat", "text a red boat text", "text a text red boat text"]


def test_random_placement_makes_single_spaces_of_all_white_space():
    found = insert_as_text(Token(5, "x"), "  a \t red\n\nboat ", Placement.RANDOM, 1, path=(3,))
    assert found == ["a red boat x"]


def test_a_copy_with_white_space_inside_is_several_words_at_the_next_step():
    found = insert_as_text(Token(5, " to do"), "boat", Placement.RANDOM, 3, path=(1, 3, 2))
    assert found == ["boat  to do", "boat to do  to do", "boat to  to do do to do"]


def test_an_empty_carrier_takes_copies():
    token = Token(5, "x")
    assert insert_as_text(token, "", Placement.PREFIX, 2) == ["x", "xx"]
    assert insert_as_text(token, "", Placement.SUFFIX, 2) == ["x", "xx"]
    assert insert_as_text(token, "", Placement.RANDOM, 2, path=(0, 1)) == ["x", "x x"]


@given(token_texts, carrier_texts, st.integers(1, 6))
def test_text_prefix_and_suffix_are_concatenation(text, carrier, counts):
    token = Token(MARK_ID, text)
    prefixed = insert_as_text(token, carrier, Placement.PREFIX, counts)
    suffixed = insert_as_text(token, carrier, Placement.SUFFIX, counts)
    assert len(prefixed) == len(suffixed) == counts
    for step in range(counts):
        copies = "".join(text for _ in range(step + 1))
        assert prefixed[step] == copies + carrier
        assert suffixed[step] == carrier + copies


@settings(max_examples=150)
@given(st.data(), token_texts, carrier_texts)
def test_random_text_keeps_the_words_of_the_carrier_in_order(data, text, carrier):
    words = carrier.split()
    path = data.draw(paths(len(words)))
    probes = insert_as_text(Token(MARK_ID, text), carrier, Placement.RANDOM, len(path), path)
    for step, probe in enumerate(probes):
        assert without_mark(probe.split()) == words
        assert len(probe.split()) == len(words) + step + 1


@settings(max_examples=150)
@given(st.data(), token_texts, carrier_texts)
def test_each_step_of_random_text_adds_one_copy_to_the_step_before(data, text, carrier):
    path = data.draw(paths(len(carrier.split())))
    before = carrier.split()
    for gap, probe in zip(
        path, insert_as_text(Token(MARK_ID, text), carrier, Placement.RANDOM, len(path), path), strict=True
    ):
        after = probe.split()
        assert after == [*before[:gap], text.strip(), *before[gap:]]
        assert is_subsequence(before, after)
        assert Counter(after) - Counter(before) == Counter([text.strip()])
        before = after


# Among token ids.


def test_ids_go_in_front_of_the_words_but_behind_the_prompt():
    carrier = TokenizedText(head=(1, 2), words=((10,), (11, 12)))
    assert insert_as_ids(Token(7, "x"), carrier, Placement.PREFIX, 2) == [
        (1, 2, 7, 10, 11, 12),
        (1, 2, 7, 7, 10, 11, 12),
    ]


def test_ids_go_behind_the_words():
    carrier = TokenizedText(head=(1, 2), words=((10,), (11, 12)))
    assert insert_as_ids(Token(7, "x"), carrier, Placement.SUFFIX, 2) == [
        (1, 2, 10, 11, 12, 7),
        (1, 2, 10, 11, 12, 7, 7),
    ]


def test_random_ids_go_between_words_and_never_into_one():
    carrier = TokenizedText(head=(1,), words=((10,), (11, 12), (13,)))
    assert insert_as_ids(Token(7, "x"), carrier, Placement.RANDOM, 3, path=(2, 0, 5)) == [
        (1, 10, 11, 12, 7, 13),
        (1, 7, 10, 11, 12, 7, 13),
        (1, 7, 10, 11, 12, 7, 13, 7),
    ]


def test_the_ids_of_a_tokenized_text_are_its_head_and_its_words():
    assert TokenizedText(head=(1, 2), words=((10,), (11, 12))).ids == (1, 2, 10, 11, 12)
    assert TokenizedText(head=(), words=()).ids == ()


@settings(max_examples=150)
@given(st.data(), carriers, st.sampled_from(list(Placement)))
def test_ids_insertion_puts_in_exactly_n_copies_and_leaves_the_rest(data, carrier, placement):
    path = data.draw(paths(len(carrier.words)))
    found = insert_as_ids(Token(MARK_ID, MARK), carrier, placement, len(path), path)
    assert len(found) == len(path)
    for copies, probe in enumerate(found, start=1):
        assert probe.count(MARK_ID) == copies
        assert tuple(token_id for token_id in probe if token_id != MARK_ID) == carrier.ids
        assert probe[: len(carrier.head)] == carrier.head


@given(st.data(), carriers)
def test_each_step_of_random_ids_adds_one_copy_at_a_word_boundary(data, carrier):
    path = data.draw(paths(len(carrier.words)))
    words = list(carrier.words)
    for gap, probe in zip(
        path, insert_as_ids(Token(MARK_ID, MARK), carrier, Placement.RANDOM, len(path), path), strict=True
    ):
        words = [*words[:gap], (MARK_ID,), *words[gap:]]
        assert probe == carrier.head + tuple(token_id for word in words for token_id in word)


@given(st.data(), st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_text_and_ids_follow_a_path_in_the_same_way(data, numbers):
    """A word an id, so both insertions must give the same order."""
    path = data.draw(paths(len(numbers)))
    as_text = insert_as_text(
        Token(MARK_ID, str(MARK_ID)), " ".join(map(str, numbers)), Placement.RANDOM, len(path), path
    )
    carrier = TokenizedText(head=(), words=tuple((number,) for number in numbers))
    as_ids = insert_as_ids(Token(MARK_ID, str(MARK_ID)), carrier, Placement.RANDOM, len(path), path)
    assert [tuple(map(int, probe.split())) for probe in as_text] == as_ids


# Paths that cannot be followed.

INSERTIONS = [
    pytest.param(insert_as_text, "a red boat", id="text"),
    pytest.param(insert_as_ids, TokenizedText(head=(), words=((1,), (2,), (3,))), id="ids"),
]


@pytest.mark.parametrize(("insert", "carrier"), INSERTIONS)
@pytest.mark.parametrize("path", [(), (1,), (0, 3)])
def test_a_path_that_is_too_short_is_refused_with_both_numbers(insert, carrier, path):
    with pytest.raises(InputError, match=f"of 3 copies needs a path of 3 gaps, got {len(path)}"):
        insert(Token(5, "x"), carrier, Placement.RANDOM, 3, path)


@pytest.mark.parametrize(("insert", "carrier"), INSERTIONS)
@pytest.mark.parametrize(("path", "gap", "words"), [((4, 0), 4, 3), ((-1, 0), -1, 3), ((0, 5), 5, 4)])
def test_a_gap_outside_the_sentence_is_refused(insert, carrier, path, gap, words):
    with pytest.raises(InputError, match=f"gap {gap} of .* outside a sentence of {words} words"):
        insert(Token(5, "x"), carrier, Placement.RANDOM, 2, path)


def test_the_largest_gap_is_behind_the_last_word_and_a_longer_path_is_cut():
    token, path = Token(5, "x"), (3, 4, 99)
    words = TokenizedText(head=(), words=((1,), (2,), (3,)))
    assert insert_as_text(token, "a red boat", Placement.RANDOM, 2, path) == [
        "a red boat x",
        "a red boat x x",
    ]
    assert insert_as_ids(token, words, Placement.RANDOM, 2, path) == [(1, 2, 3, 5), (1, 2, 3, 5, 5)]


@pytest.mark.parametrize(("insert", "carrier"), INSERTIONS)
@pytest.mark.parametrize("placement", list(Placement))
def test_no_copies_make_no_probes(insert, carrier, placement):
    assert insert(Token(5, "x"), carrier, placement, 0) == []


def test_the_names_that_users_type_are_the_documented_ones():
    assert [str(placement) for placement in Placement] == ["prefix", "suffix", "random"]
    assert [str(insertion) for insertion in Insertion] == ["text", "ids", "words"]


# Copies of several tokens.


@pytest.mark.parametrize("joining", list(Joining))
def test_copies_at_an_end_are_glued_or_words(joining):
    between = " " if joining is Joining.WORDS else ""
    around = "" if joining is Joining.GLUED else " "
    prefixed = place_as_text(["x", "y"], "a b", Placement.PREFIX, joining=joining)
    suffixed = place_as_text(["x", "y"], "a b", Placement.SUFFIX, joining=joining)
    assert prefixed == around.join([between.join("xy"), "a b"])
    assert suffixed == around.join(["a b", between.join("xy")])
    assert place_as_text(["x"], "", Placement.SUFFIX, joining=joining) == "x"


@given(words=st.lists(st.sampled_from("abc"), max_size=5), copies=st.integers(1, 5), data=st.data())
def test_words_at_random_are_the_same_however_ends_are_joined(words, copies, data):
    text = " ".join(words)
    path = data.draw(paths(len(words)).filter(lambda path: len(path) >= copies))
    found = {
        place_as_text(["tok"] * copies, text, Placement.RANDOM, path, joining)
        for joining in (Joining.GLUED, Joining.WORDS)
    }
    assert found == {insert_as_text(Token(7, "tok"), text, Placement.RANDOM, copies, path)[-1]}


@pytest.mark.parametrize(
    ("placement", "path", "expected"),
    [
        (Placement.PREFIX, (), (9, 7, 8, 1, 2, 3, 5)),
        (Placement.SUFFIX, (), (9, 1, 2, 3, 7, 8, 5)),
        (Placement.RANDOM, (1, 0), (9, 8, 1, 2, 7, 3, 5)),
    ],
)
def test_ids_of_several_tokens_go_in_between_head_and_tail(placement, path, expected):
    text = TokenizedText((9,), ((1, 2), (3,)), (5,))
    assert place_as_ids([7, 8], text, placement, path) == expected
