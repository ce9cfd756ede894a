"""Pairs: read from files, sampled evenly over similarity, chosen below the mean similarity."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.data import pairs_from_file
from stickytoken.data.corpora import SentencePair, sample_pairs, select_pairs
from stickytoken.errors import InputError
from tables import table


def slow_nearest_free(ascending, targets):
    free = list(range(len(ascending)))
    chosen = []
    for target in targets:
        chosen.append(min(free, key=lambda k, target=target: abs(ascending[k] - target)))
        free.remove(chosen[-1])
    return chosen


def spaced(low, high, count):
    """Evenly spaced values from low to high, both included."""
    return [low + step * (high - low) / (count - 1) for step in range(count)] if count > 1 else [low]


# sample_pairs


def unit_rows(count, dimension, seed):
    rows = np.random.default_rng(seed).standard_normal((count, dimension))
    return rows * np.random.default_rng(seed + 1).uniform(0.5, 2, (count, 1))  # of any length


def names(count):
    return [f"sentence {k}" for k in range(count)]


def slow_cosine(left, right):
    dot = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return dot / math.sqrt(math.fsum(a * a for a in left) * math.fsum(b * b for b in right))


def slow_sample(sentences, vectors, count):
    pairs = sorted(
        (slow_cosine(vectors[i], vectors[j]), sentences[i], sentences[j])
        for i, j in itertools.combinations(range(len(sentences)), 2)
    )
    similarities = [pair[0] for pair in pairs]
    targets = spaced(similarities[0], similarities[-1], min(count, len(pairs)))
    return [pairs[k] for k in sorted(slow_nearest_free(similarities, targets))]


@pytest.mark.parametrize(("sentences", "count"), [(2, 1), (8, 10), (15, 105), (6, 500)])
def test_sampled_pairs_equal_a_search_through_all_pairs(sentences, count):
    vectors = unit_rows(sentences, 4, seed=count)
    found = sample_pairs(names(sentences), vectors, count)
    expected = slow_sample(names(sentences), vectors.tolist(), count)
    assert [pair.sentences for pair in found] == [(first, second) for _, first, second in expected]
    assert [pair.similarity for pair in found] == pytest.approx([pair[0] for pair in expected], abs=1e-12)


def test_fewer_than_two_sentences_make_no_pair():
    with pytest.raises(InputError, match="at least 2 sentences, got 1"):
        sample_pairs(names(1), unit_rows(1, 3, seed=0), 5)


# select_pairs


def pairs_at(similarities):
    return [SentencePair(f"anchor {k}", f"carrier {k}", value) for k, value in enumerate(similarities)]


def slow_select(pairs, u, count):
    below = sorted((pair for pair in pairs if pair.similarity < u), key=lambda pair: pair.similarity)
    low = below[0].similarity
    targets = spaced(low, low + 0.8 * (u - low), min(count, len(below)))
    return [min(below, key=lambda pair, at=at: abs(pair.similarity - at)) for at in targets]


@settings(max_examples=100)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40, unique=True),
    st.integers(1, 30),
    st.floats(-0.5, 1.5),
)
def test_selected_pairs_equal_a_search_through_all_pairs(similarities, count, u):
    pairs = pairs_at(similarities)
    if not any(pair.similarity < u for pair in pairs):
        with pytest.raises(InputError):
            select_pairs(pairs, u, count)
        return
    found = select_pairs(pairs, u, count)
    expected = slow_select(pairs, u, count)
    low = min(similarities)
    targets = spaced(low, low + 0.8 * (u - low), len(expected))
    assert len(found) == min(count, sum(value < u for value in similarities))
    # Which of two pairs at the same distance from a target, to rounding, does not matter.
    for pair, best, target in zip(found, expected, targets, strict=True):
        assert abs(pair.similarity - target) == pytest.approx(abs(best.similarity - target), abs=1e-15)


def test_a_pair_at_u_itself_is_not_below_it():
    pairs = pairs_at([0.3, 0.2])
    assert select_pairs(pairs, 0.3, 2) == [pairs[1]]
    with pytest.raises(InputError, match=r"none of the 2 sentence pairs .* mean 0\.2000"):
        select_pairs(pairs, 0.2, 2)


def test_the_order_of_pairs_changes_nothing_even_of_equal_similarity():
    generator = random.Random(0)
    pairs = pairs_at([round(generator.uniform(-0.5, 1), 1) for _ in range(60)])
    shuffled = generator.sample(pairs, len(pairs))
    assert shuffled != pairs
    assert select_pairs(shuffled, 0.4, 20) == select_pairs(pairs, 0.4, 20)


# Files

PAIRS = {
    "sentence1": ["A red boat.", 'She said "no"'],
    "sentence2": ["One, two", "Größe"],
    "similarity": [0.25, -1.0],
}


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_pairs_are_read_from_every_table(write, ending):
    path = write(f"p.{ending}", table(ending, {"extra": [1, 2], **PAIRS}))
    assert pairs_from_file(path) == [
        SentencePair("A red boat.", "One, two", 0.25),
        SentencePair('She said "no"', "Größe", -1.0),
    ]


HEADER = "sentence1,sentence2,similarity\n"


def test_a_similarity_may_be_written_in_any_usual_way(write):
    usual = ("-1", "1.0000001", "5e-1", " 0.5 ")
    path = write("p.csv", HEADER + "".join(f"a,b,{similarity}\n" for similarity in usual))
    assert [pair.similarity for pair in pairs_from_file(path)] == [*map(float, usual)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("p.csv", f'{HEADER}a,b,0.5\nc,d,"{wrong}"\n', "pair 2 .* between -1 and 1")
            for wrong in ("nan", "1.01", "high", "", "0,5")
        ),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": [0.5]}\n', "contains List"),
        ("p.jsonl", '{"sentence1": "a", "sentence2": "b", "similarity": true}\n', "contains Boolean"),
        ("p.csv", f"{HEADER}a,b,0.5\n  ,b,0.5\n", "pair 2 has a blank sentence"),
        ("p.csv", "sentence1,similarity\na,0.5\n", "lacks the column 'sentence2'"),
        ("p.csv", HEADER, "has no pairs"),
        ("p.txt", "a\tb\t0.5\n", "pairs are read from .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("p.jsonl", '{"sentence1": 1, "sentence2": "b", "similarity": 0}\n', "column 'sentence1' of"),
    ],
)
def test_a_pair_file_that_cannot_be_used_is_named_with_what_is_wrong(write, name, content, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        pairs_from_file(path)
    assert str(path) in str(error.value)
