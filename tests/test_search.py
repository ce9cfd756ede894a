"""Exact search, and push: against a search that sorts every list of results."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stickytoken.search import ExactSearch, depth_of, push_ratios
from stickytoken.unit_vectors import Similarity

seeds = st.integers(0, 2**32 - 1)


def search_of(seed, queries=7, documents=12, similarity=Similarity.COSINE):
    generator = np.random.default_rng(seed)
    return ExactSearch(
        similarity.prepared(generator.normal(size=(queries, 4))),
        similarity.prepared(generator.normal(size=(documents, 4))),
        similarity,
    )


def first_results(search, query, place, vector, depth):
    """Put a document with another vector into the index, and sort the results of a query."""
    documents = search.documents.copy()
    documents[place] = search.similarity.prepared(vector[None])[0]
    similarities = search.similarity.of_all(search.queries[[query]], documents)[0]
    return np.argsort(-similarities, kind="stable")[:depth]


@settings(max_examples=30)
@given(seeds, st.sampled_from(Similarity), st.integers(1, 4))
def test_a_document_above_its_limit_is_among_the_first_results(seed, similarity, depth):
    search = search_of(seed, similarity=similarity)
    places = [0, 5, 11]
    vectors = np.random.default_rng(seed + 1).normal(size=(3, 4))
    after = similarity.of_all(search.queries, similarity.prepared(vectors))
    above = after > search.limits(places, depth)
    ranks = search.ranks(vectors, places)
    for query in range(7):
        for column, place in enumerate(places):
            is_first = place in first_results(search, query, place, vectors[column], depth)
            assert above[query, column] == is_first == (ranks[query, column] <= depth)


def test_a_document_competes_with_no_exact_copy_of_itself():
    once = search_of(4)
    # Documents 0 and 12 have one text, whose vectors from different batches differ by rounding.
    documents = np.vstack([once.documents, once.documents[:1] + 1e-7])
    duplicates = dict.fromkeys((0, 12), (0, 12))
    search = ExactSearch(once.queries, documents, once.similarity, duplicates=duplicates)
    for depth in (1, 3):
        np.testing.assert_array_equal(search.limits([0, 12], depth)[:, 0], once.limits([0], depth)[:, 0])
        np.testing.assert_array_equal(search.limits([0, 12], depth)[:, 1], once.limits([0], depth)[:, 0])
        ascending = np.sort(np.delete(search.similarities, 5, axis=1), axis=1)
        np.testing.assert_array_equal(search.limits([5], depth)[:, 0], ascending[:, -depth])
    # Whatever takes its place, be it the document itself.
    vectors = np.vstack([documents[[0, 12]], -documents[0]])
    expected = once.ranks(vectors, [0, 0, 0])
    np.testing.assert_array_equal(search.ranks(vectors, [0, 12, 12]), expected)
    # Another document still competes with both of them.
    is_above = search.similarities[:, 12] >= search.similarities[:, 5]
    expected = once.ranks(documents[[5]], [5])[:, 0] + is_above
    np.testing.assert_array_equal(search.ranks(documents[[5]], [5])[:, 0], expected)


def test_a_document_without_others_is_a_first_result():
    once = search_of(4, documents=3)
    search = ExactSearch(
        once.queries, once.documents, once.similarity, duplicates=dict.fromkeys(range(3), range(3))
    )
    assert (search.limits([1], 1) == -np.inf).all()


def test_a_query_that_is_a_document_does_not_find_itself():
    once = search_of(5)
    search = ExactSearch(once.queries, once.documents, once.similarity, excluded={2: [7]})
    others = np.sort(np.delete(once.similarities[2], 7))
    assert search.similarities[2, 7] == -np.inf
    assert search.limits([7], 3)[2, 0] == others[-3]
    ranks = search.ranks(once.documents[[7, 7, 8]], [7, -1, 8])
    assert ranks[2].tolist()[:2] == [12, once.ranks(once.documents[[7]], [-1])[2, 0] - 1]
    np.testing.assert_array_equal(
        np.delete(search.similarities, 7, axis=1)[2], np.delete(once.similarities[2], 7)
    )


@pytest.mark.parametrize(("documents", "depth"), [(2, 1), (100, 1), (101, 2), (240, 3), (1398, 14)])
def test_one_percent_of_the_collection_are_its_first_results(documents, depth):
    assert depth_of(documents) == depth


def results(seed, tokens=4, queries=9, documents=6):
    generator = np.random.default_rng(seed)
    without = generator.random((queries, documents)) < 0.3
    without[0, 0] = True
    with_copies = generator.random((tokens, queries, documents)) < 0.4
    weights = generator.uniform(0.5, 2, size=(queries, documents))
    return with_copies, without, weights


@settings(max_examples=20)
@given(seeds)
def test_a_push_is_a_ratio_of_weighted_counts_within_its_interval(seed):
    with_copies, without, weights = results(seed)
    push = push_ratios(with_copies, without, weights, 0.9, [seed])
    for token, is_result in enumerate(with_copies):
        assert push.value[token] == pytest.approx(weights[is_result].sum() / weights[without].sum())
        assert push.low[token] <= push.high[token]


def test_without_a_change_a_push_is_one_in_every_sample():
    _, without, weights = results(3)
    push = push_ratios(without[None], without, weights, 0.9, [1])
    assert np.array(push) == pytest.approx(1)


def test_results_in_all_places_push_more_than_in_none():
    _, without, weights = results(4)
    push = push_ratios(np.stack([np.ones_like(without), np.zeros_like(without)]), without, weights, 0.9, [1])
    assert push.low[0] > 1
    assert (push.value[1], push.high[1]) == (0, 0)


@pytest.mark.slow
def test_nine_of_ten_intervals_hold_the_true_ratio():
    """Queries and documents with effects of their own, which a bootstrap over pairs would take for none."""
    inside = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        of_queries = generator.gamma(2, 0.5, size=(60, 1))
        of_documents = generator.gamma(2, 0.5, size=(1, 40))
        rate = 0.05 * of_queries * of_documents
        without = generator.random((60, 40)) < rate
        with_copies = generator.random((60, 40)) < 2 * rate
        push = push_ratios(with_copies[None], without, np.ones((60, 40)), 0.9, [seed])
        inside.append(push.low[0] <= 2 <= push.high[0])
    # The pigeonhole bootstrap counts the noise of single pairs more than once, so it errs on the safe side.
    assert np.mean(inside) >= 0.88


def test_without_a_wrong_result_before_copies_nothing_is_known():
    with_copies, without, weights = results(5)
    push = push_ratios(with_copies, np.zeros_like(without), weights, 0.9, [1])
    assert np.isnan(push.value).all()
    assert (set(push.low), set(push.high)) == ({0.0}, {np.inf})
