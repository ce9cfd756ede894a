"""What is said of an explained token, alone and beside a run."""

import numpy as np
import pytest
from scipy import stats

from stickytoken.explanation.files import measure_rows
from stickytoken.explanation.result import findings, verdict


def rows_with(shift, layers=4):
    """Attention rows of a token that leaves the benign interval from layer 3 on."""
    values = np.random.default_rng(0).normal(0.2, 0.01, (20, layers))
    values[:, 2:] += shift
    benign = np.random.default_rng(1).normal(0.2, 0.01, (8, 20, layers))
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
    benign = 0.05 + 0.02 * stats.zscore(np.random.default_rng(1).normal(size=8), ddof=1)
    return measure_rows("lift_sentences", values, np.repeat(benign[:, None], 20, axis=1), 0.9)


STICKY = {"verdict": "sticky", "severity": "severe", "lift": 0.2134, "sd": 2.41}
STICKY |= {"universality": 0.9, "texts": 96}
TOPICAL = {"verdict": "topical", "severity": "mild", "lift": 0.1, "kind": "law"}
BENIGN = {"verdict": "benign", "lift": 0.01, "sd": 0.1, "universality": 0.0}


def test_a_run_is_quoted_first_and_texts_that_show_little_are_too_few_to_say():
    rows = [*rows_with(0.5), *lift_rows(0.01)]
    half = stats.t.ppf(0.95, 7) * 0.02 * np.sqrt(1 + 1 / 8)
    said = verdict("river", 7, rows, findings(rows), 8, STICKY)
    assert said.startswith(
        "'river' (7): the run calls it sticky (severe): lift 0.2134 over 96 texts, 2.41 SD beyond an "
        "ordinary token's, on 90% of the kinds of text. Over 20 texts, the rise of similarities with "
        "unrelated texts is 0.060 (benign tokens 0.050, +0.5 SD); the interval of the difference, "
        f"{0.01 - half:+.3f} to {0.01 + half:+.3f}, includes zero: too few texts and benign tokens to say. "
        "Beyond the interval of 8 matched benign tokens: 1 of 2 measures: share of all attention"
    )


@pytest.mark.parametrize(
    ("run", "shift", "quoted", "concluded"),
    [
        (STICKY, 0.1, "sticky (severe): lift 0.2134", "+5.0 SD), consistent with the run. Beyond"),
        (
            STICKY,
            -0.1,
            "sticky (severe): lift 0.2134",
            "-5.0 SD): too few texts and benign tokens to question",
        ),
        (
            TOPICAL,
            0.1,
            "topical (mild): lift 0.1000, most on law. Over",
            "+5.0 SD), consistent with the run.",
        ),
        (BENIGN, -0.1, "benign: lift 0.0100, 0.10 SD", "consistent with the run."),
        (BENIGN, 0.1, "benign: lift 0.0100, 0.10 SD", "too few texts and benign tokens to question the run."),
    ],
)
def test_the_texts_are_compared_with_what_the_run_says(run, shift, quoted, concluded):
    rows = lift_rows(shift)
    said = verdict("river", 7, rows, findings(rows), 8, run)
    assert said.startswith(f"'river' (7): the run calls it {quoted}")
    assert concluded in said


def test_what_a_run_does_not_measure_is_left_out():
    assert verdict("river", 7, rows_with(0.0), [], 8, {"verdict": "sticky"}) == (
        "'river' (7): the run calls it sticky. Beyond the interval of 8 matched benign tokens: 0 of 1 "
        "measures."
    )


def test_without_a_run_a_lift_outside_the_benign_interval_is_a_finding():
    rows = lift_rows(0.1)
    assert verdict("river", 7, rows, findings(rows), 8).endswith(
        "in 1 of 1 measures: rise of similarities with unrelated texts 0.150 (benign 0.050, +5.0 SD)."
    )


@pytest.mark.parametrize("benign", [7, 8])
@pytest.mark.parametrize("lift", [[], lift_rows(0.0)], ids=["no lift", "lift"])
def test_a_token_inside_all_benign_intervals_is_not_called_equal_to_benign_tokens(lift, benign):
    rows = [*rows_with(0.0), *lift]
    assert findings(rows) == []
    said = verdict("river", 7, rows, [], benign)
    lifts = "the rise of similarities with unrelated texts is 0.050 (mean of "
    if benign < 8:
        assert said.startswith("'river' (7): 7 matched benign tokens are too few to say whether it differs")
        assert said.endswith(f"; {lifts}the benign tokens 0.050)." if lift else "(8 are needed).")
    else:
        inside = f"none of {1 + len(lift)} measures is outside the interval of 8 matched benign tokens"
        texts = f"; over 20 texts, {lifts}8 benign tokens 0.050), and the interval" if lift else "."
        assert said.startswith(f"'river' (7): {inside}{texts}")
