"""When the work began whose duration is reported."""

import time

from stickytoken import wall_time


def test_work_outside_a_command_begins_now():
    before = time.perf_counter()
    assert before <= wall_time.beginning() <= time.perf_counter()


def test_the_first_work_of_a_command_begins_with_the_command():
    before = time.perf_counter()
    with wall_time.started_by_command():
        after = time.perf_counter()
        assert before <= wall_time.beginning() <= after


def test_later_work_of_a_command_begins_now():
    with wall_time.started_by_command():
        wall_time.beginning()
        middle = time.perf_counter()
        assert wall_time.beginning() >= middle


def test_a_command_ends_with_its_block():
    with wall_time.started_by_command():
        pass
    after = time.perf_counter()
    assert wall_time.beginning() >= after
