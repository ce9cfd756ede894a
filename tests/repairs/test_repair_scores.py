"""A change of a task's score is told apart from what chance alone explains."""

import numpy as np
import pytest

import repaired
from stickytoken.data.tasks import load_task
from stickytoken.repairs._verification import _kept_score
from stickytoken.repairs.result import ScoreRecord


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(repaired.task_file(tmp_path_factory.mktemp("task")))[0]


def cosines(*exchanged):
    """Cosines that follow the scores of the pairs, but for two pairs that have exchanged theirs."""
    found = (np.arange(12) % 5 + np.linspace(0, 0.9, 12))[:, None] / 10
    found[list(exchanged)] = found[list(reversed(exchanged))]
    return found


@pytest.mark.parametrize(
    ("before", "after", "fall", "passed", "said", "unsaid"),
    [
        (cosines(), cosines(), (0, 0), True, "(no change)", "chance"),
        # A small fall that chance may explain is excused, and a large one is not.
        (cosines(), cosines(4, 8), (0.005, 0.02), True, "chance alone may explain it", "rose"),
        (cosines(), cosines(2, 3), (0.02, 0.1), False, "chance alone may explain it", "rose"),
        (cosines(), -cosines(), (0.1, 2), False, "\N{MINUS SIGN}", "chance"),
        (-cosines(), cosines(), (-2, -0.1), True, "it rose by", "fell"),
    ],
)
def test_a_change_is_told_and_excused_if_chance_may_explain_it(
    task, before, after, fall, passed, said, unsaid
):
    metric = task.metrics[0]
    first, second = (float(task.scores(metric, each[None])[0]) for each in (before, after))
    assert fall[0] <= first - second <= fall[1]
    record = ScoreRecord(task=task.name, metric=metric, texts=24, before=first, after=second)
    kept, finding = _kept_score(record, task, before, after, 1)
    assert kept is passed
    assert said in finding
    assert unsaid not in finding
    if first != second:
        assert f" by {100 * abs(first - second):.2f} points (with other {task.unit}," in finding
