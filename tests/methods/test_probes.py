"""Paths of random placement: drawn by a key, or replayed from the published stream."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.insertion import Token
from stickytoken.methods.probes import KeyedPaths
from stickytoken.methods.std import walk_vocabulary

TEXTS = ["tip", " tip", "to do", " a b c", "x\ty", "[CLS]", "\N{BLACK STAR}"]
VOCABULARY = [Token(token_id, TEXTS[token_id % len(TEXTS)]) for token_id in range(3, 90, 2)]
WORDS = (4, 1, 9)
COUNTS = 5
carriers = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)
tokens = st.builds(Token, id=st.integers(0, 200_000), text=st.sampled_from(TEXTS))


def largest_gaps(token, words, counts):
    """Words of the sentence before each step, by really inserting and splitting again."""
    sentence = " ".join(["word"] * words)
    sizes = []
    for _ in range(counts):
        sizes.append(len(sentence.split()))
        sentence = f"{sentence} {token.text}"
    return sizes


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(0, 9), tokens, carriers, st.integers(1, 8))
def test_keyed_gaps_stay_inside_the_sentence_of_their_step(seed, key, token, words, counts):
    paths = KeyedPaths(seed, key, words, counts).of(token)
    assert len(paths) == len(words)
    for path, start in zip(paths, words, strict=True):
        assert len(path) == counts
        for gap, largest in zip(path, largest_gaps(token, start, counts), strict=True):
            assert 0 <= gap <= largest


def test_keyed_gaps_reach_every_place_about_equally_often():
    source = KeyedPaths(seed=0, key=1, words=(3, 3), counts=2)
    paths = [source.of(Token(token_id, "x")) for token_id in range(4000)]
    for carrier in (0, 1):
        for step, places in ((0, 4), (1, 5)):
            seen = Counter(found[carrier][step] for found in paths)
            assert sorted(seen) == list(range(places))
            expected = 4000 / places
            chi_squared = sum((count - expected) ** 2 / expected for count in seen.values())
            assert chi_squared < 20  # the 99.9 % quantile of 4 degrees of freedom is 18.5


@pytest.mark.parametrize(
    ("seed", "key", "token_id"), [(8, 1, 11), (7, 2, 11), (7, 1, 12), (1, 7, 11), (7, 11, 1), (11, 1, 7)]
)
def test_seed_key_and_token_each_change_the_keyed_paths_and_nothing_else_does(seed, key, token_id):
    words, token = (1000, 1000), Token(11, "x")
    source = KeyedPaths(7, 1, words, COUNTS)
    base = source.of(token)
    assert KeyedPaths(seed, key, words, COUNTS).of(Token(token_id, "x")) != base
    assert base[0] != base[1]
    assert source.of(token) == base
    assert KeyedPaths(7, 1, (3, 1000, 4), COUNTS).of(token)[1] == base[1]
    assert [path[:3] for path in base] == KeyedPaths(7, 1, words, 3).of(token)


def slow_walk(seed, vocabulary, words, counts):
    """The published loop: one stream, tokens by id, then pairs, then copies."""
    stream = random.Random(seed)
    found = {}
    for token in sorted(vocabulary, key=lambda token: token.id):
        found[token.id] = ()
        for count in words:
            sentence = " ".join(["word"] * count)
            path = []
            for _ in range(counts):
                parts = sentence.split()
                gap = stream.randint(0, len(parts))
                path.append(gap)
                parts.insert(gap, token.text)
                sentence = " ".join(parts)
            found[token.id] += (tuple(path),)
    return found


@pytest.mark.parametrize("seed", [42, 7])
def test_walked_paths_equal_a_slow_replay_of_the_published_stream(seed):
    walked = walk_vocabulary(seed, VOCABULARY, VOCABULARY, WORDS, COUNTS)
    assert walked == slow_walk(seed, VOCABULARY, WORDS, COUNTS)
    published = walk_vocabulary(42, [Token(5, "x")], [Token(5, "x")], [9], 3)
    assert published == {5: ((1, 0, 11),)}  # the first draws of random.Random(42), written down


@settings(max_examples=60)
@given(st.sets(st.sampled_from(range(len(VOCABULARY))), min_size=1))
def test_walked_paths_do_not_depend_on_which_tokens_are_wanted(places):
    wanted = [VOCABULARY[place] for place in places]
    every = walk_vocabulary(42, VOCABULARY, VOCABULARY, WORDS, COUNTS)
    some = walk_vocabulary(42, VOCABULARY, list(reversed(wanted)), WORDS, COUNTS)
    assert some == {token.id: every[token.id] for token in wanted}
