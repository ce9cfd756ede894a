"""Rows of effects against plain loops, on a task whose metric is a mean over its units."""

from dataclasses import dataclass

import numpy as np
import pytest

from stickytoken.impacts._intrusion import TaskEffects
from stickytoken.impacts._vectors import TaskOutcomes
from stickytoken.impacts.conditions import Kind, make_conditions
from stickytoken.impacts.results import ImpactSettings
from stickytoken.insertion import Token

UNITS = 40
STICKY = [Token(place, f"sticky{place}") for place in range(4)]
# Two matches each: the first match of every sticky token, then the second.
BENIGN = [Token(10 + place, f"benign{place}") for place in range(8)]
SETTINGS = ImpactSettings(benign=2, seeds=3, resamples=100)
CONDITIONS = make_conditions(STICKY, BENIGN, SETTINGS.seed, SETTINGS.seeds)


@dataclass(frozen=True)
class MeanTask:
    """A task whose score is the mean of its outcomes."""

    name: str = "mean"
    layout: str = "plain"
    unit: str = "texts"
    units: int = UNITS
    metrics: tuple[str, ...] = ("mean",)
    fingerprint: str = ""

    def scores(self, metric, outcomes, sample=None):
        chosen = slice(None) if sample is None else sample
        return outcomes[:, chosen, 0].mean(axis=1)


@pytest.fixture(scope="module")
def outcomes():
    return np.random.default_rng(0).normal(size=(len(CONDITIONS), UNITS, 1))


@pytest.fixture(scope="module")
def effects(outcomes):
    found = TaskOutcomes(task=MeanTask(), outcomes=outcomes, edited=UNITS, cut=0, texts=UNITS)
    return TaskEffects(found, CONDITIONS, SETTINGS, {token.id: token.text for token in (*STICKY, *BENIGN)})


def score_of(outcomes, kind, tokens=()):
    """The mean over units and repetitions of a condition."""
    places = [k for k, each in enumerate(CONDITIONS) if each.kind is kind and each.tokens == tuple(tokens)]
    assert len(places) == SETTINGS.seeds
    return float(np.mean([outcomes[place].mean() for place in places]))


def test_an_effect_is_what_sticky_tokens_cost_more_than_their_own_matches(effects, outcomes):
    clean = score_of(outcomes, Kind.CLEAN)
    sticky = [clean - score_of(outcomes, Kind.STICKY, [token]) for token in STICKY]
    benign = [clean - score_of(outcomes, Kind.BENIGN, [token]) for token in BENIGN]
    (row,) = effects.effect_rows()
    assert row["clean"] == pytest.approx(clean)
    assert row["drop_sticky"] == pytest.approx(np.mean(sticky))
    assert row["drop_benign"] == pytest.approx(np.mean(benign))
    assert row["difference"] == pytest.approx(np.mean(sticky) - np.mean(benign))
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    assert row["drop_sticky_relative"] == pytest.approx(np.mean(sticky) / clean)
    matched = np.array([own - (benign[k] + benign[len(STICKY) + k]) / 2 for k, own in enumerate(sticky)])
    assert row["effect_size"] == pytest.approx(matched.mean() / matched.std(ddof=1))


def test_a_condition_is_the_mean_of_its_repetitions_and_clean_texts_have_no_drop(effects, outcomes):
    rows = {(row["kind"], row["token_id"]): row for row in effects.condition_rows()}
    clean = score_of(outcomes, Kind.CLEAN)
    for kind, tokens in ((Kind.STICKY, STICKY), (Kind.BENIGN, BENIGN)):
        for token in tokens:
            score = score_of(outcomes, kind, [token])
            row = rows[kind.value, token.id]
            assert (row["score"], row["drop"]) == pytest.approx((score, clean - score))
    assert rows["sticky mixture", None]["score"] == pytest.approx(score_of(outcomes, Kind.STICKY, STICKY))
    assert rows["clean", None]["score"] == pytest.approx(clean)
    assert rows["clean", None]["drop"] is None
