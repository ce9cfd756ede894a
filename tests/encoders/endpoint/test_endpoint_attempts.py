"""When a request is sent again, and when not."""

import pytest

from stickytoken.encoders.endpoint import _answers
from stickytoken.encoders.endpoint._answers import Attempts
from stickytoken.encoders.endpoint._client import Failure, TemporaryError

BUSY = TemporaryError("HTTP 429", Failure.REFUSED, 429)
BROKEN = TemporaryError("HTTP 500", Failure.REFUSED, 500)
UNREACHED = TemporaryError("refused", Failure.UNREACHED)


def failures(attempts, *errors):
    """Pauses after errors that come one pause after the other; None ends them."""
    now, pauses = 0.0, []
    for error in errors:
        pauses.append(attempts.pause_after(error, now))
        now += pauses[-1] or 0.0
    return pauses


def test_pauses_double_at_random_up_to_the_longest(monkeypatch):
    monkeypatch.setattr(_answers, "_FIRST_PAUSE", 1.0)
    monkeypatch.setattr(_answers, "_LONGEST_PAUSE", 10.0)
    pauses = failures(Attempts(1000.0), *[BROKEN] * 6)
    for pause, most in zip(pauses, [2, 4, 8, 10, 10, 10], strict=True):
        assert most / 2 <= pause <= most


def test_a_pause_is_what_the_server_asks_for_and_a_little_more():
    asked = TemporaryError("HTTP 429", Failure.REFUSED, 429, 3.0)
    assert all(3.0 <= pause <= 3.31 for pause in failures(Attempts(1000.0), *[asked] * 5))


@pytest.mark.parametrize(("error", "tried"), [(BROKEN, 4), (UNREACHED, 2)])
def test_failures_are_counted_but_not_refusals_of_a_busy_server(error, tried):
    found = failures(Attempts(1e9, most=4, most_unreached=2), *[BUSY] * 20, *[error] * tried)
    assert None not in found[:-1]
    assert found[-1] is None


def test_patience_ends_and_says_why(monkeypatch):
    monkeypatch.setattr(_answers, "_LONGEST_PAUSE", 10.0)
    monkeypatch.setattr(_answers, "_FIRST_PAUSE", 0.5)
    waits = TemporaryError("HTTP 429", Failure.REFUSED, 429, 3600.0)
    long, short = Attempts(600.0), Attempts(2.0)
    assert failures(long, waits) == [None]
    assert long.given_up(waits) == "asks to wait for 3,600 s, longer than the 600 s allowed (HTTP 429)"
    found = failures(short, *[BROKEN] * 9)
    assert None in found
    assert short.given_up(BROKEN) == "gave no usable answer in 9 attempts (HTTP 500)"
