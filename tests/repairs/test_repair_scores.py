"""A change of a task's score is told apart from what chance alone explains."""

import numpy as np
import pytest

import repaired
from stickytoken.repairs._comparison import _kept_score, _Scored
from stickytoken.repairs.record import ScoreRecord
from stickytoken.tasks.files import load_task


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


def test_a_fall_that_chance_explains_is_said_to_be_no_more(task):
    before = cosines(task)
    after = before.copy()
    after[[0, 5]] = after[[5, 0]]
    after[[2, 3]] = after[[3, 2]]
    check, (first, second) = checked(task, before, after)
    assert second < first - 0.005
    assert check.passed
    assert "no more than chance" in check.finding
    assert f"with other {task.unit}" in check.finding


def test_a_fall_that_chance_does_not_explain_fails(task):
    check, _ = checked(task, cosines(task), -cosines(task))
    assert not check.passed
    assert "chance" not in check.finding
    assert "\N{MINUS SIGN}" in check.finding
