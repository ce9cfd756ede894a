"""The first round: what cannot be estimated, and who goes on to the last."""

import numpy as np
import polars as pl
import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.methods.profile.estimates import screen
from stickytoken.methods.profile.plan import tokens_to_confirm

CONFIDENCE = 0.9


@pytest.mark.parametrize("rounding", [0.0, 1e-16, 1e-12])
@pytest.mark.parametrize("common", [[0.25, 0.5, -1.0], [0.0, 0.0, 0.0]])
def test_a_model_that_does_not_tell_texts_apart_is_refused(common, rounding):
    generator = np.random.default_rng(6)
    lifts = np.tile(common, (20, 1)) * (1 + rounding * generator.normal(size=(20, 3)))
    with pytest.raises(InputError, match="every token moves the similarities equally"):
        screen(lifts, np.full(20, True), CONFIDENCE)


@pytest.mark.parametrize("unit", [1e-6, 1.0])
def test_a_model_that_hardly_tells_texts_apart_is_not_refused(unit):
    generator = np.random.default_rng(6)
    lifts = unit * np.tile([0.25, 0.5, -1.0], (20, 1)) * (1 + 1e-6 * generator.normal(size=(20, 3)))
    screen(lifts, np.full(20, True), CONFIDENCE)


@pytest.mark.parametrize("shape", [(1, 3), (20, 1)])
def test_one_token_or_one_probe_is_refused(shape):
    with pytest.raises(InputError, match=r"two of both are needed"):
        screen(np.random.default_rng(6).normal(size=shape), np.full(shape[0], True), CONFIDENCE)


# Who goes on, read from the shards of a run.


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


def shards(run, step):
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    return {row["token_id"]: row for row in pl.concat([pl.read_parquet(path) for path in paths]).to_dicts()}


def chosen_in_turn(screened, weights, count):
    """Tokens by their mean lift, and by the group of the lift on which each stands out most, in turn."""
    lifts = {token: sum(row["lifts"]) / len(row["lifts"]) for token, row in screened.items()}
    standing = dict.fromkeys(screened, -np.inf)
    for group, weight in enumerate(weights):
        if weight > 0:
            own = {token: np.nanmean(row["groups"][group :: len(weights)]) for token, row in screened.items()}
            center = np.median(list(own.values()))
            spread = np.median([abs(value - center) for value in own.values()])
            for token, value in own.items():
                standing[token] = max(standing[token], (value - center) / spread)
    orders = [sorted(values, key=lambda token: (-values[token], token)) for values in (lifts, standing)]
    chosen = []
    for pair in zip(*orders, strict=True):
        for token in pair:
            if token not in chosen and len(chosen) < count:
                chosen.append(token)
    return set(chosen)


@pytest.mark.parametrize("topics", [0, 5])
def test_the_tokens_that_lift_most_on_all_texts_or_on_one_kind_are_confirmed(tmp_path, topics):
    """With topics in the place of kinds; without them the model makes six clusters."""
    run = profiled.detect_profile(
        load_encoder(profiled.foreign_model()), tmp_path / "run", sentences=profiled.corpus(200, topics)
    )
    screened, late = shards(run, "screen"), set(run.plan.late_reference)
    count = tokens_to_confirm(profiled.SMALL, len(screened))
    assert count == 30
    expected = chosen_in_turn(screened, [group.weight for group in run.plan.groups], count)
    assert set(shards(run, "confirm")) == expected - late


def test_only_tokens_that_were_asked_for_go_on(encoder, run, tmp_path):
    ids = [each for each in run.tokens["token_id"].to_list() if each not in run.plan.late_reference][:50]
    some = profiled.detect_profile(encoder, tmp_path / "run", tokens=ids)
    confirmed = set(shards(some, "confirm"))
    assert confirmed < set(ids)
    assert len(confirmed) == some.result.candidates == 30
    assert set(shards(some, "screen")) == {*ids, *run.plan.reference}
