"""A change of a task's score is told apart from what chance alone explains."""

import numpy as np
import pytest

import repaired
from stickytoken.data.tasks import load_task
from stickytoken.repairs._verification import _kept_score, _Scored
from stickytoken.repairs.result import ScoreRecord


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Twelve pairs of sentences."""
    return load_task(repaired.task_file(tmp_path_factory.mktemp("task")))[0]


def checked(task, before, after):
    """Check the main score for cosines before and after a repair."""
    metric = task.metrics[0]
    scored = [_Scored({metric: float(task.scores(metric, each[None])[0])}, each) for each in (before, after)]
    values = [each.values[metric] for each in scored]
    record = ScoreRecord(task=task.name, metric=metric, texts=24, before=values[0], after=values[1])
    return _kept_score(record, task, *scored, 1), values


def cosines(task):
    gold = np.arange(task.units) % 5
    return (gold + np.linspace(0, 0.9, task.units))[:, None] / 10


def test_equal_scores_are_said_to_be_equal(task):
    check, _ = checked(task, cosines(task), cosines(task))
    assert check.passed
    assert check.finding.endswith("(no change)")


def exchanged(task, one, other):
    """Cosines that two pairs have exchanged."""
    found = cosines(task)
    found[[one, other]] = found[[other, one]]
    return found


def test_a_small_fall_that_chance_may_explain_is_told_and_excused(task):
    check, (first, second) = checked(task, cosines(task), exchanged(task, 4, 8))
    assert 0.005 < first - second < 0.02
    assert check.passed
    assert f"it fell by {100 * (first - second):.2f} points (with other {task.unit}," in check.finding
    assert "chance alone may explain it" in check.finding


def test_a_large_fall_is_not_excused_even_if_chance_may_explain_it(task):
    check, (first, second) = checked(task, cosines(task), exchanged(task, 2, 3))
    assert first - second > 0.02
    assert "chance alone may explain it" in check.finding
    assert not check.passed


def test_a_fall_that_chance_does_not_explain_fails(task):
    check, _ = checked(task, cosines(task), -cosines(task))
    assert not check.passed
    assert "chance" not in check.finding
    assert "\N{MINUS SIGN}" in check.finding


def test_a_rise_is_told(task):
    check, _ = checked(task, -cosines(task), cosines(task))
    assert check.passed
    assert "it rose by" in check.finding
