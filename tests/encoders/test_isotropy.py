"""The IsoScore, against its formula for clouds that fill some dimensions evenly."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stickytoken.encoders import isoscore


@given(st.integers(2, 40), st.data())
def test_k_of_n_dimensions_score_k_minus_1_of_n_minus_1_however_the_cloud_is_turned(size, data):
    used = data.draw(st.integers(1, size))
    turn, _ = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))
    axes = np.eye(size)[:used]
    cloud = np.concatenate([axes, -axes]) @ turn
    assert isoscore(cloud) == pytest.approx((used - 1) / (size - 1), abs=1e-9)
    assert isoscore(np.zeros((3, size))) is isoscore(np.ones((3, 1))) is None  # where nothing varies
