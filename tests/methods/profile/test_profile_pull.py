"""Lift and contraction together: known weights, invariances, and tokens that only the sum tells apart."""

import numpy as np
import pytest

from stickytoken.methods.profile.estimates import Measurements
from stickytoken.methods.profile.pull import contraction_weight, contractions, pulls
from stickytoken.methods.profile.rounds import Round

TOKENS, PROBES = 4000, 5
EVERYBODY = np.full(TOKENS, True)


def measured(lifts, slopes, ids=None):
    ids = np.arange(len(lifts)) if ids is None else ids
    nothing, rest = np.zeros((len(ids), 1)), np.zeros(len(ids))
    return Measurements(ids, lifts, lifts, nothing, rest, slopes, rest)


def vocabulary(seed=0, lift=0.02, contraction=0.3, noise=2.0, tokens=TOKENS):
    """Effects of the given spreads, noise that is larger, and what the probes do to all tokens."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(size=(2, tokens, 1)) * np.array([lift, contraction])[:, None, None]
    errors = noise * generator.normal(size=(2, tokens, PROBES)) * np.array([lift, contraction])[:, None, None]
    common = generator.normal(size=(2, 1, PROBES))
    return effects + errors + common


@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_the_weight_is_the_ratio_of_the_spreads_without_their_noise(noise):
    lifts, contracted = vocabulary(noise=noise)
    found = contraction_weight(lifts, contracted, EVERYBODY)
    assert found == pytest.approx(0.02 / 0.3, rel=0.1)


def test_the_weight_grows_with_the_lifts_and_shrinks_with_the_contractions():
    lifts, contracted = vocabulary()
    plain = contraction_weight(lifts, contracted, EVERYBODY)
    assert contraction_weight(3 * lifts + 1, 2 * contracted - 5, EVERYBODY) == pytest.approx(1.5 * plain)


def test_selected_tokens_have_no_say_in_the_weight():
    lifts, contracted = vocabulary()
    reference = np.arange(TOKENS) % 2 == 0
    plain = contraction_weight(lifts, contracted, reference)
    lifts[~reference], contracted[~reference] = 7.0, np.nan
    assert contraction_weight(lifts, contracted, reference) == pytest.approx(plain)


def test_where_noise_explains_contraction_or_lift_the_lift_stands_alone():
    lifts, contracted = vocabulary()
    assert contraction_weight(lifts, np.zeros_like(lifts), EVERYBODY) == 0
    assert contraction_weight(np.zeros_like(lifts), contracted, EVERYBODY) == 0


def test_every_round_has_the_weight_of_the_first_and_its_own_probes():
    lifts, contracted = vocabulary()
    later = vocabulary(seed=1, tokens=30)
    rounds = {
        Round.SCREEN: measured(lifts, 1 - contracted),
        Round.CONFIRM: measured(later[0], 1 - later[1], ids=np.arange(30) * 7),
    }
    found = pulls(rounds, np.arange(TOKENS))
    weight = contraction_weight(lifts, contracted, EVERYBODY)
    assert np.allclose(found[Round.SCREEN], lifts + weight / 2 * contracted)
    assert np.allclose(found[Round.CONFIRM], later[0] + weight / 2 * later[1])


def test_a_probe_without_a_line_has_the_lift_alone():
    lifts, contracted = vocabulary()
    slopes = 1 - contracted
    slopes[:, 2] = np.nan
    own = measured(lifts, slopes)
    assert (contractions(own)[:, 2] == 0).all()
    found = pulls({Round.SCREEN: own}, np.arange(TOKENS))[Round.SCREEN]
    assert np.array_equal(found[:, 2], lifts[:, 2])
    assert np.isfinite(found).all()


def test_a_token_that_flattens_stands_out_among_tokens_that_lift_as_much():
    """Among ordinary tokens what lifts more flattens less."""
    generator = np.random.default_rng(3)
    effects = generator.normal(size=TOKENS)
    flattening = -0.4 * effects + np.sqrt(1 - 0.4**2) * generator.normal(size=TOKENS)
    effects[0], flattening[0] = 3.5, 3.0
    lifts = 0.01 * effects[:, None] + 0.001 * generator.normal(size=(TOKENS, PROBES))
    slopes = 1 - 0.06 * flattening[:, None] + 0.006 * generator.normal(size=(TOKENS, PROBES))
    own = measured(lifts, slopes)
    pull = pulls({Round.SCREEN: own}, np.arange(TOKENS))[Round.SCREEN].mean(axis=1)
    standard = (pull - pull.mean()) / pull.std()
    by_lift = (lifts.mean(axis=1) - lifts.mean()) / lifts.mean(axis=1).std()
    assert standard[0] > 5.2 > standard[1:].max()
    assert by_lift[0] < 3.7
