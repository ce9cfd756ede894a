"""What is said of an explained token, alone and beside a run."""

import numpy as np
import pytest
from scipy import stats

from stickytoken.explanation._verdict import RunVerdict, findings, verdict
from stickytoken.explanation.tables import measure_rows


def generator(seed=0):
    return np.random.default_rng(seed)


def rows_with(shift, layers=4):
    """Attention rows of a token that leaves the benign interval from layer 3 on."""
    values = generator().normal(0.2, 0.01, (20, layers))
    values[:, 2:] += shift
    benign = generator(1).normal(0.2, 0.01, (8, 20, layers))
    return measure_rows("attention_received", values, benign, 0.95)


def test_the_layer_where_it_begins_is_the_first_outside():
    found = findings(rows_with(0.5))
    assert [(each.measure, each.begins) for each in found] == [("attention_received", 3)]
    said = verdict("river", 7, rows_with(0.5), found, 8)
    assert said.startswith("'river' (7) differs from 8 matched benign tokens in 1 of 1 measures")
    assert "begins in layer 3 of 4" in said


def lift_rows(shift):
    """Lifts of a token on 20 texts, and of eight benign tokens with a spread of 0.02."""
    values = np.full(20, 0.05 + shift) + np.linspace(-0.01, 0.01, 20)
    benign = 0.05 + 0.02 * stats.zscore(generator(1).normal(size=8), ddof=1)
    return measure_rows("lift_sentences", values, np.repeat(benign[:, None], 20, axis=1), 0.9)


STICKY = RunVerdict("sticky", "severe", lift=0.2134, sd=2.41, universality=0.9, texts=96)


def test_a_run_is_quoted_first_and_texts_that_show_little_are_too_few_to_say():
    rows = [*rows_with(0.5), *lift_rows(0.01)]
    half = stats.t.ppf(0.95, 7) * 0.02 * np.sqrt(1 + 1 / 8)
    said = verdict("river", 7, rows, findings(rows), 8, STICKY)
    assert said.startswith(
        "'river' (7): the run calls it sticky (severe): lift 0.2134 over 96 texts, 2.41 SD beyond an "
        "ordinary token's, on 90% of the kinds of text. Over 20 texts, the rise of similarities with "
        "unrelated texts is 0.060 (benign tokens 0.050, +0.5 SD); the interval of the difference, "
        f"{0.01 - half:+.3f} to "
        f"{0.01 + half:+.3f}, includes zero: too few texts and benign tokens to say. Beyond the interval of "
        "8 matched benign tokens: 1 of 2 measures: share of all attention"
    )
    assert "consistent" not in said


def test_texts_that_show_the_rise_are_consistent_with_a_run_that_flags_the_token():
    rows = lift_rows(0.1)
    for verdict_of_run in (STICKY, RunVerdict("topical", "mild", lift=0.1, kind="law")):
        said = verdict("river", 7, rows, findings(rows), 8, verdict_of_run)
        assert "is 0.150 (benign tokens 0.050, +5.0 SD), consistent with the run. Beyond" in said
    assert "the run calls it topical (mild): lift 0.1000, most on law. Over" in said


def test_an_unflagged_token_is_called_sticky_nowhere():
    benign = RunVerdict("benign", lift=0.01, sd=0.1, universality=0.0)
    for shift in (0.0, 0.1, -0.1):
        rows = lift_rows(shift)
        said = verdict("river", 7, rows, findings(rows), 8, benign)
        assert said.startswith("'river' (7): the run calls it benign: lift 0.0100, 0.10 SD")
        assert "sticky" not in said
        agrees = (
            "too few texts and benign tokens to question the run."
            if shift > 0
            else "consistent with the run."
        )
        assert agrees in said


def test_a_fall_does_not_contradict_a_run_that_flags_the_token():
    rows = lift_rows(-0.1)
    said = verdict("river", 7, rows, findings(rows), 8, STICKY)
    assert "-5.0 SD): too few texts and benign tokens to question the run." in said


def test_what_a_run_does_not_measure_is_left_out():
    assert verdict("river", 7, rows_with(0.0), [], 8, RunVerdict("sticky")) == (
        "'river' (7): the run calls it sticky. Beyond the interval of 8 matched benign tokens: 0 of 1 "
        "measures."
    )


def test_without_a_run_a_lift_outside_the_benign_interval_is_a_finding():
    rows = lift_rows(0.1)
    assert verdict("river", 7, rows, findings(rows), 8).endswith(
        "in 1 of 1 measures: rise of similarities with unrelated texts 0.150 (benign 0.050, +5.0 SD)."
    )


@pytest.mark.parametrize("lift", [[], lift_rows(0.0)], ids=["no lift", "lift"])
def test_a_token_inside_all_benign_intervals_is_not_called_equal_to_benign_tokens(lift):
    rows = [*rows_with(0.0), *lift]
    assert findings(rows) == []
    said = verdict("river", 7, rows, [], 8)
    inside = (
        f"'river' (7): none of {1 + len(lift)} measures is outside the interval of 8 matched benign tokens"
    )
    assert said.startswith(f"{inside}; over 20 texts, the rise" if lift else f"{inside}.")


@pytest.mark.parametrize(("benign", "few"), [(4, True), (7, True), (8, False)])
def test_too_few_benign_tokens_allow_no_conclusion(benign, few):
    rows = [*rows_with(0.0), *lift_rows(0.0)]
    said = verdict("[CLS]", 101, rows, [], benign)
    assert said.startswith(f"'[CLS]' (101): {benign} matched benign tokens are too few to say") is few
    assert ("none of" in said) is not few
    if few:
        assert said.endswith(
            "the rise of similarities with unrelated texts is 0.050 (mean of the benign tokens 0.050)."
        )
