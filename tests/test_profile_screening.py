"""A first round that cannot be estimated, and one that just can."""

import numpy as np
import pytest

from stickytoken.detection.profile.estimates import screen
from stickytoken.errors import InputError

CONFIDENCE = 0.9


@pytest.mark.parametrize("rounding", [0.0, 1e-16, 1e-12])
@pytest.mark.parametrize("common", [[0.25, 0.5, -1.0], [0.0, 0.0, 0.0]])
def test_a_model_that_does_not_tell_texts_apart_is_refused(common, rounding):
    generator = np.random.default_rng(6)
    lifts = np.tile(common, (20, 1)) * (1 + rounding * generator.normal(size=(20, 3)))
    with pytest.raises(InputError, match="every token moves the similarities alike"):
        screen(lifts, np.zeros((20, 1)), np.full(20, True), CONFIDENCE)


@pytest.mark.parametrize("unit", [1e-6, 1.0])
def test_a_model_that_hardly_tells_texts_apart_is_not_refused(unit):
    generator = np.random.default_rng(6)
    lifts = unit * np.tile([0.25, 0.5, -1.0], (20, 1)) * (1 + 1e-6 * generator.normal(size=(20, 3)))
    screen(lifts, np.zeros((20, 1)), np.full(20, True), CONFIDENCE)


def test_one_token_or_one_probe_is_refused():
    for shape in ((1, 3), (20, 1)):
        with pytest.raises(InputError, match=r"two of both are needed"):
            screen(
                np.random.default_rng(6).normal(size=shape),
                np.zeros((shape[0], 1)),
                np.full(shape[0], True),
                0.9,
            )
