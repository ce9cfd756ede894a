"""How far copies move documents up, against sorting by hand."""

import numpy as np
import pytest

from stickytoken.methods.profile._judging import moves_up
from stickytoken.methods.statistics import Pull


def units(seed, count, dimension=8):
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def slow_share(contraction, pull, texts, seed):
    """For every query and document, count by comparison who is ahead before and after."""
    order = np.random.default_rng([seed, 4]).permutation(len(texts)).tolist()
    count = min(100, len(texts) // 2)
    moved = total = 0
    for query in order[:count]:
        similarities = [float(text @ texts[query]) for text in texts]
        for document in order[count : 2 * count]:
            before = similarities[document]
            after = (1 - contraction) * before + float(texts[query] @ pull)
            passed = sum(each > before for each in similarities) - sum(each > after for each in similarities)
            moved += passed >= len(texts) / 10
            total += 1
    return moved / total


@pytest.mark.parametrize("seed", range(3))
def test_shares_equal_a_loop_over_queries_and_documents(seed):
    texts = units(seed, 60)
    generator = np.random.default_rng([seed, 9])
    effects = Pull(np.array([0.0, 0.3, 0.8]), generator.normal(size=(3, 8)) * 0.3)
    found = moves_up(effects, texts, seed)
    expected = [slow_share(k, p, texts, seed) for k, p in zip(*effects, strict=True)]
    # In single precision a document may tie with itself.
    assert found == pytest.approx(expected, abs=2 / 900)


def test_a_token_that_does_nothing_moves_nothing_and_one_that_pulls_to_all_texts_moves_most():
    texts = units(0, 200) + np.float32(0.5)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    toward = texts.mean(axis=0)
    found = moves_up(Pull(np.zeros(2), np.stack([np.zeros(8), toward])), texts, 0)
    assert found[0] == 0
    assert found[1] > 0.8


def test_two_texts_are_enough():
    assert moves_up(Pull(np.zeros(1), np.ones((1, 8))), units(1, 2), 0).shape == (1,)
