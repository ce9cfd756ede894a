"""What is said about a task: only the test over tokens concludes."""

import pytest

from stickytoken.impacts.statistics import benign_needed, conclusion, cost_sentence


def effect(**changes):
    return {
        "task": "sts",
        "metric": "spearman",
        "main": True,
        "clean": 0.8,
        "drop_sticky": 0.3,
        "drop_benign": 0.1,
        "difference": 0.2,
        "difference_low": 0.1,
        "difference_high": 0.3,
        "tokens": 1,
        "benign_tokens": 19,
        "p_value": 0.05,
        "q_value": 0.05,
    } | changes


def test_a_rejected_test_is_a_higher_cost():
    assert cost_sentence(effect(), "sticky") == (
        "sts: sticky tokens lower spearman by 0.3000, benign ones by 0.1000, from 0.8000: sticky tokens cost "
        "more (p = 0.05)."
    )
    assert conclusion(effect(p_value=0.0001, q_value=0.0002), "named") == (
        "named tokens cost more (p < 0.001, corrected over tasks q < 0.001)"
    )


def test_a_test_that_does_not_reject_shows_no_difference_whatever_the_interval_over_queries():
    assert conclusion(effect(p_value=0.31, q_value=0.31), "sticky") == "no difference shown (p = 0.31)"
    several = effect(p_value=0.04, q_value=0.12)
    assert conclusion(several, "sticky") == "no difference shown (p = 0.04, corrected over tasks q = 0.12)"


def test_a_one_sided_test_never_shows_a_lower_cost():
    lower = effect(difference=-0.2, difference_low=-0.3, difference_high=-0.1, p_value=1.0, q_value=1.0)
    assert conclusion(lower, "sticky") == "sticky tokens are not shown to cost more (p = 1)"


@pytest.mark.parametrize(
    ("tokens", "benign", "lacking"),
    [
        (1, 8, "1 sticky token with 8 benign ones; 11 more would do"),
        (1, 18, "1 sticky token with 18 benign ones; 1 more would do"),
        (2, 1, "2 sticky tokens with 1 benign one each; 3 more for each would do"),
        (4, 1, "4 sticky tokens with 1 benign one each; 1 more for each would do"),
    ],
)
def test_too_few_tokens_conclude_nothing_however_small_p(tokens, benign, lacking):
    few = effect(tokens=tokens, benign_tokens=tokens * benign, p_value=(1 + benign) ** -tokens)
    assert conclusion(few, "sticky") == f"too few tokens to conclude ({lacking})"


def test_enough_tokens_conclude():
    for tokens, benign in ((1, 19), (2, 4), (3, 2), (5, 1)):
        assert benign_needed(tokens) == benign
        assert (1 + benign) ** -tokens <= 0.05 < max(benign, 0.5) ** -tokens
        enough = effect(tokens=tokens, benign_tokens=tokens * benign, p_value=(1 + benign) ** -tokens)
        assert "cost more" in conclusion(enough | {"q_value": enough["p_value"]}, "sticky")


def test_without_a_test_there_is_no_conclusion():
    assert conclusion(effect(p_value=None, q_value=None), "sticky").startswith("too few tokens to conclude")
    assert cost_sentence(effect(difference=None), "sticky") == "sts: spearman is not defined."


def test_metrics_that_restate_the_main_one_have_no_conclusion_of_their_own():
    assert cost_sentence(effect(main=False, q_value=None), "sticky").endswith("from 0.8000.")
