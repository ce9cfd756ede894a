"""The first round: what cannot be estimated, and who goes on to the later ones."""

import numpy as np
import polars as pl
import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.methods.profile.estimates import screen
from stickytoken.methods.profile.pull import contraction_weight
from stickytoken.methods.profile.rounds import Round, tokens_in

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


# Who goes on, read from the shards of a run.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    encoder = load_encoder(profiled.planted_model(2))
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


def means(run, step, column):
    """Mean over probes of every token that a round measured, by token id."""
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    table = pl.concat([pl.read_parquet(path) for path in paths])
    return dict(zip(table["token_id"], table[column].list.mean(), strict=True))


def mean_pulls(run, step):
    """The same of lift + w / 2 x (1 - slope); w would give both the same spread."""
    lifts, slopes = means(run, step, "lifts"), means(run, step, "slopes")
    screened = first_round(run)
    weight = contraction_weight(*screened, np.full(len(screened[0]), True))
    return {token_id: lifts[token_id] - weight / 2 * slopes[token_id] for token_id in lifts}


def first_round(run):
    paths = sorted((run.path / "shards").glob("screen-*.parquet"))
    table = pl.concat([pl.read_parquet(path) for path in paths])
    return np.array(table["lifts"].to_list()), 1 - np.array(table["slopes"].to_list())


def ranked(values):
    return sorted(values, key=lambda token_id: (-values[token_id], token_id))


def test_the_tokens_that_lift_or_pull_most_in_the_first_round_are_refined(run):
    lifts, late = means(run, "screen", "lifts"), set(run.plan.late_reference)
    refined = set(means(run, "refine", "lifts"))
    chosen = tokens_in(profiled.SMALL, len(lifts))[Round.REFINE]
    lifting = ranked(lifts)[: -(-chosen // 2)]
    pulling = [own for own in ranked(mean_pulls(run, "screen")) if own not in lifting]
    assert refined == {*lifting, *pulling[: chosen // 2], *late}
    assert len(refined) < len(lifts)


@pytest.mark.parametrize("column", ["lifts", "pulls"])
def test_the_tokens_that_lift_and_pull_most_so_far_are_confirmed(run, column):
    late = set(run.plan.late_reference)
    refined = mean_pulls(run, "refine") if column == "pulls" else means(run, "refine", "lifts")
    confirmed = set(means(run, "confirm", "lifts"))
    assert confirmed <= set(refined)
    went_on = [refined[token_id] for token_id in confirmed - late]
    stayed = [refined[token_id] for token_id in set(refined) - confirmed]
    assert np.mean(went_on) > np.mean(stayed)
