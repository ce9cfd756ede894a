"""The IsoScore of clouds with a known covariance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import profiled
from stickytoken import load_encoder
from stickytoken.encoders.views import isoscore, mean_similarity


@given(st.integers(2, 40), st.data())
def test_even_use_of_some_dimensions_scores_their_share(size, data):
    """k of n dimensions score (k - 1) / (n - 1), however the cloud is turned or stretched."""
    used = data.draw(st.integers(1, size))
    turn, _ = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))
    covariance = turn @ np.diag([7.0] * used + [0.0] * (size - used)) @ turn.T
    assert isoscore(covariance) == pytest.approx((used - 1) / (size - 1), abs=1e-9)


@pytest.mark.parametrize("covariance", [np.zeros((3, 3)), np.ones((1, 1))])
def test_there_is_no_score_where_nothing_varies(covariance):
    assert isoscore(covariance) is None


def test_the_score_of_a_vocabulary_is_that_of_its_unit_vectors():
    encoder = load_encoder(profiled.planted_model(0))
    found = mean_similarity(encoder)
    vectors = encoder.encode(list(encoder.tokenizer.entries.values()), allow_zero=True).astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found.entries == len(units)
    assert found.isoscore == pytest.approx(isoscore(np.cov(units, rowvar=False, bias=True)), abs=1e-6)
    sampled = mean_similarity(encoder, most=200)
    assert sampled.isoscore == pytest.approx(found.isoscore, abs=0.1)
