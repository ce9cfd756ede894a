"""The garbage collector is paused while a model is loaded, and runs again afterwards."""

import gc

import pytest

from stickytoken.cli._loading import collector_paused


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_it_is_paused_inside_and_runs_again_after_a_nested_pause_or_an_error():
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError), collector_paused():
        raise RuntimeError
    assert gc.isenabled()


def test_what_is_there_in_the_end_is_left_out_of_later_collections():
    before = gc.get_freeze_count()
    with collector_paused():
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= before + len(kept)


def test_where_it_was_off_it_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
