"""In which order and how long tokens are measured closely, on made-up measurements."""

import numpy as np
import pytest

import calibration
from stickytoken.methods.profile.plan import CONFIRMING_BATCH
from stickytoken.methods.profile.rounds import confirm_in_batches, confirming_stage

PILOTS = 100
TOKENS = 300
PILOT_IDS = np.arange(PILOTS)
OTHER_IDS = np.arange(PILOTS, TOKENS)
# An ordinary token erases no more than others, with a standard deviation of 3%.
NOISE = 0.03


def measurements_of(ids, contractions, carriers):
    """Measurements that scatter around each token's contraction."""
    noise = np.random.default_rng(carriers).normal(scale=NOISE, size=(TOKENS, carriers))
    return calibration.measurements_of(ids, (contractions[:, None] + noise)[ids])


def batches_of(by_screen, by_confirming, budgeted):
    """Run the round. Return the batches of token ids, and the number of tokens that the budget leaves out.

    ``by_screen`` and ``by_confirming`` are the contractions of all tokens in the carriers of each round.
    """
    after_screen = calibration.with_plan(
        [0, 1],
        screened=measurements_of(np.arange(TOKENS), by_screen, 2),
        confirmed=measurements_of(PILOT_IDS, by_confirming, 40),
        pilots=PILOT_IDS,
    )
    batches = []

    def measure_batch(ids, stage_name):
        batches.append(set(ids.tolist()))
        assert stage_name == confirming_stage(len(batches))
        return measurements_of(ids, by_confirming, 40)

    measured = confirm_in_batches(after_screen, OTHER_IDS, budgeted, measure_batch)
    return batches, measured.unconfirmed


def contractions(**shares_by_range):
    values = np.random.default_rng(1).normal(scale=NOISE, size=TOKENS)
    for name, share in shares_by_range.items():
        start, end = map(int, name.removeprefix("from_").split("_to_"))
        values[start:end] = share
    return values


def test_without_a_token_that_may_be_sticky_there_is_one_batch():
    ordinary = contractions()
    (batch,), unconfirmed = batches_of(ordinary, ordinary, budgeted=200)
    assert len(batch) == CONFIRMING_BATCH
    assert unconfirmed == 0


def test_the_tokens_that_erase_most_come_first():
    erasing = contractions(from_150_to_160=0.8)
    batches, _ = batches_of(erasing, erasing, budgeted=200)
    assert set(range(150, 160)) <= batches[0]


def test_a_sticky_token_in_a_batch_calls_for_the_next_batch():
    erasing = contractions(from_150_to_160=0.8)
    batches, _ = batches_of(erasing, erasing, budgeted=200)
    assert [len(batch) for batch in batches] == [CONFIRMING_BATCH] * 2


def test_the_round_goes_on_while_the_screen_says_that_a_remaining_token_may_be_sticky():
    """Even after a batch in which the confirming carriers refute the screen for every token."""
    by_screen = contractions(from_150_to_250=0.8)
    batches, unconfirmed = batches_of(by_screen, contractions(), budgeted=200)
    assert set(range(150, 250)) <= batches[0] | batches[1]
    assert len(batches) == 2
    assert unconfirmed == 0


@pytest.mark.parametrize("budgeted", [10, 70, 99])
def test_tokens_that_may_be_sticky_but_exceed_the_budget_are_counted(budgeted):
    by_screen = contractions(from_150_to_250=0.8)
    batches, unconfirmed = batches_of(by_screen, by_screen, budgeted)
    confirmed_ids = set().union(*batches)
    assert len(confirmed_ids) == budgeted
    assert unconfirmed == len(set(range(150, 250)) - confirmed_ids)
