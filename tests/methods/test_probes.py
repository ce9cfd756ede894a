"""Random placement of copies, against loops and plain draws."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from stickytoken.insertion import Token
from stickytoken.methods.probes import balanced
from stickytoken.methods.std.placement import PathsByToken, Walk, walk_vocabulary

TEXTS = ["tip", " tip", "to do", " a b c", "x\ty", "[CLS]", "\N{BLACK STAR}"]
VOCABULARY = [Token(token_id, TEXTS[token_id % len(TEXTS)]) for token_id in range(3, 90, 2)]
WORDS = (4, 1, 9)
COUNTS = 5
carriers = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)
tokens = st.builds(Token, id=st.integers(0, 200_000), text=st.sampled_from(TEXTS))


@settings(max_examples=50)
@given(st.integers(0, 2**32), tokens, carriers, st.integers(1, 8))
def test_gaps_of_a_token_stay_inside_the_sentence_of_their_step(seed, token, words, counts):
    paths = PathsByToken(seed, words, counts).of(token)
    assert len(paths) == len(words)
    for path, start in zip(paths, words, strict=True):
        assert len(path) == counts
        sentence = " ".join(["word"] * start)
        for gap in path:  # by really inserting and splitting again
            assert 0 <= gap <= len(sentence.split())
            sentence = f"{sentence} {token.text}"


def test_gaps_of_tokens_reach_every_place_about_equally_often():
    source = PathsByToken(seed=0, word_counts=(3, 3), copies=2)
    paths = [source.of(Token(token_id, "x")) for token_id in range(4000)]
    for carrier in (0, 1):
        for step, gaps in ((0, 4), (1, 5)):
            counts = Counter(paths_of_carriers[carrier][step] for paths_of_carriers in paths)
            assert sorted(counts) == list(range(gaps))
            expected = 4000 / gaps
            chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
            assert chi_squared < 20  # the 99.9 % quantile of 4 degrees of freedom is 18.5


@pytest.mark.parametrize(("seed", "token_id"), [(8, 11), (7, 12), (1, 11), (7, 1), (11, 7)])
def test_seed_and_token_each_change_the_paths_and_nothing_else_does(seed, token_id):
    words = (1000, 1000)
    token = Token(11, "x")
    source = PathsByToken(7, words, COUNTS)
    base = source.of(token)
    assert PathsByToken(seed, words, COUNTS).of(Token(token_id, "x")) != base
    assert base[0] != base[1]
    assert source.of(token) == base
    assert PathsByToken(7, (3, 1000, 4), COUNTS).of(token)[1] == base[1]
    assert [path[:3] for path in base] == PathsByToken(7, words, 3).of(token)


@settings(max_examples=60)
@given(st.sets(st.sampled_from(range(len(VOCABULARY))), min_size=1))
def test_walked_paths_are_those_of_the_published_stream_whichever_tokens_are_wanted(places):
    expected_path = ((1, 0, 11),)  # the first draws of random.Random(42), written down
    assert walk_vocabulary(42, [Token(5, "x")], [Token(5, "x")], Walk((9,), 3)) == {5: expected_path}
    stream = random.Random(42)
    token = Token(5, " a b c")  # whose every copy adds three words
    expected_path = tuple(stream.randint(0, 9 + 3 * step) for step in range(3))
    assert walk_vocabulary(42, [token], [token], Walk((9,), 3)) == {5: (expected_path,)}
    expected = [VOCABULARY[index] for index in places]
    walks = walk_vocabulary(42, VOCABULARY, VOCABULARY, Walk(WORDS, COUNTS))
    some = walk_vocabulary(42, VOCABULARY, list(reversed(expected)), Walk(WORDS, COUNTS))
    assert some == {token.id: walks[token.id] for token in expected}


topics = st.lists(st.sampled_from("abcd"), max_size=25)


@settings(max_examples=60)
@given(topics, st.integers(0, 30), st.integers(0, 5))
def test_no_group_gets_two_more_than_another_while_that_one_lasts(groups, count, seed):
    indices = balanced(groups, count, seed)
    assert len(set(indices)) == len(indices) == min(count, len(groups))
    assert indices == balanced(groups, len(groups), seed)[:count]
    sizes = Counter(groups)
    for end in range(len(indices) + 1):
        taken = Counter(groups[index] for index in indices[:end])
        lasting = [taken[group] for group in sizes if taken[group] < sizes[group]]
        assert max(taken.values(), default=0) <= min(lasting, default=len(groups)) + 1


def test_every_item_has_the_same_chance_to_come_first():
    groups = ["a"] * 2 + ["b"] * 6
    draws = 2000
    counts = Counter(balanced(groups, 1, seed)[0] for seed in range(draws))
    for index in range(8):
        assert abs(counts[index] - draws / 8) <= 4 * math.sqrt(draws / 8)
