"""Whatever goes wrong on the way: the same vectors and bill in the end, or a line that says why not."""

import random
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import tiny
from embedding_server import FAULTS, Behaviour, EmbeddingServer
from stickytoken.encoders import load_encoder
from stickytoken.encoders.endpoint import _client
from stickytoken.errors import ModelError, RunError

TEXTS = tiny.sentences(120)


@pytest.mark.parametrize(
    ("asked", "least"), [("0.2", 0.2), ("date+2", 1.0), ("date-100", 0.0), ("soon", 0.0)]
)
def test_a_server_is_left_alone_as_long_as_it_asks_for(serve, encoder, monkeypatch, asked, least):
    served = serve(batch_limit=8, retry_after=asked)
    found = served.encoder()
    served.server.behaviour.faults.extend([None, *["429"] * (6 if least < 1 else 1)])
    waits, arrivals, answer = [], [], served.server.answer
    monkeypatch.setattr(
        served.server, "answer", lambda *asked: (arrivals.append(time.monotonic()), answer(*asked))[1]
    )
    found.waits = lambda reason, seconds: waits.append(seconds)
    began = time.monotonic()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert time.monotonic() - began >= least
    assert bool(waits) == (least >= 1)
    # By all threads: at most what was on its way goes there meanwhile.
    assert least < 1 or sum(at < began + least for at in arrivals) <= 8 < len(arrivals)
    assert served.paid(TEXTS) == sorted(TEXTS)


@pytest.mark.parametrize("asked", ["-5", "nan", "inf", "9" * 400])
def test_what_is_no_time_to_wait_is_not_waited_for(asked):
    assert _client._wait({"retry-after": asked}) is None


@pytest.mark.slow
def test_a_slow_answer_is_asked_for_again_in_halves(serve, encoder):
    served = serve(seconds_per_text=0.012)
    found = served.encoder(request_seconds=0.7)
    served.server.answered.clear()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert min(map(len, served.server.answered)) <= 30


@pytest.mark.parametrize(
    "told", [{"shuffle": True}, {"without_places": True}, {"base64": "ignore"}, {"base64": "refuse"}]
)
def test_all_forms_of_an_answer_are_read(serve, encoder, told):
    found = serve(**told).encoder()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert found.capabilities.encoding == ("float" if told.get("base64") == "refuse" else "base64")


@pytest.mark.parametrize(
    ("fault", "said", "behaviour"),
    [
        ("500", r"no usable answer in \d+ attempts.*HTTP 500, told to.*kept", {"retry_after": None}),
        ("429", r"no usable answer in \d+ attempts .*HTTP 429, told to", {"retry_after": "0.05"}),
        ("error body", r"no usable answer in .* \(the model is overloaded\): check", {}),
        ("429", r"asks to wait for 3,6.. s, longer than the 0 s", {"retry_after": "3600"}),
        (
            "429",
            r"no credit left \(HTTP 429, You exceeded",
            {"said": "You exceeded your current quota: insufficient_quota"},
        ),
    ],
)
def test_a_server_that_stays_broken_ends_the_run_with_its_reason(serve, fault, said, behaviour):
    served = serve(batch_limit=32, **behaviour)
    found = served.encoder(patience=0.4)
    served.server.behaviour.faults.extend([None, *[fault] * 1000])
    with pytest.raises(ModelError, match=said) as caught:
        found.encode(TEXTS)
    assert "\n" not in str(caught.value)
    assert found.spending.pending == pytest.approx(0)
    served.server.behaviour.faults.clear()
    found.encode(TEXTS)
    assert sorted(set(served.paid(TEXTS))) == sorted(TEXTS)


@pytest.mark.slow
def test_a_server_that_is_restarted_in_the_middle_is_waited_for(encoder, bert_folder):
    first = EmbeddingServer(encoder, Behaviour(batch_limit=8, seconds=0.02))
    second = EmbeddingServer(encoder, Behaviour(batch_limit=8))
    with ExitStack() as running:
        url = running.enter_context(first.running())
        found = load_encoder(f"{url}#mini", tokenizer=str(bert_folder), max_length=60)
        vectors = {}
        thread = threading.Thread(target=lambda: vectors.update(all=found.encode(TEXTS)))
        thread.start()
        while thread.is_alive() and len(set(first.texts) & set(TEXTS)) < 40:
            time.sleep(0.005)
        first.behaviour.faults.extend(["drop"] * 64)  # what is connected still
        running.close()
        time.sleep(0.3)
        with second.running(int(url.split(":")[2].split("/")[0])):
            thread.join()
    np.testing.assert_array_equal(vectors["all"], encoder.encode(TEXTS))
    assert len(set(second.texts) & set(TEXTS)) >= 20


def test_a_redirect_takes_the_texts_along_and_not_the_key(serve, encoder, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "sk-planted-0123456789")
    served, other = serve(), serve()
    found = served.encoder()
    served.server.behaviour.elsewhere = f"{other.url.replace('127.0.0.1', 'localhost')}/embeddings"
    served.server.behaviour.faults.append("redirect")
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert set(other.server.authorizations) == {""}
    assert "sk-planted" in served.server.authorizations[0]


def test_whatever_a_server_does_to_requests_the_vectors_and_the_bill_are_right(serve, encoder):
    served = serve(batch_limit=4)
    found = served.encoder()
    before, noted = served.server.tokens, found.spending.tokens
    faults = [*FAULTS, "no json", *[None] * 14]
    random.Random(0).shuffle(faults)
    served.server.behaviour.faults.extend(faults)
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert set(served.server.harmed) == {*FAULTS, "no json"}
    assert served.paid(TEXTS) == sorted(TEXTS)
    # An answer that was lost is counted by what it may have cost.
    more = (found.spending.tokens - noted) - (served.server.tokens - before)
    assert 0 <= more <= 40
    served.server.behaviour.faults.append("web page")
    np.testing.assert_array_equal(found.encode(["the last stone"]), encoder.encode(["the last stone"]))


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "faults"), [(3000, ("nan", "drop", "short", "500", "429")), (3501, ())])
def test_the_largest_sum_is_never_exceeded_whatever_the_server_does(serve, limit, faults):
    served = serve(batch_limit=8)
    texts = tiny.sentences(400)
    found = served.encoder(price_per_million=1e6, max_cost=limit)
    served.server.behaviour.faults.extend([*[None] * 10, *faults])
    with pytest.raises(RunError, match=f"stopped at the maximum cost of {limit}"):
        found.encode(texts)
    assert limit - 8 * 30 * (2 + len(faults)) < served.server.tokens <= limit
    served.encoder().encode(texts)
    assert served.paid(texts) == sorted(texts)


def test_nothing_is_found_out_for_more_than_the_largest_sum(serve):
    served = serve()
    with pytest.raises(RunError, match="stopped at the maximum cost of 0: 0 requests"):
        served.encoder(price_per_million=1.0, max_cost=0)
    assert served.server.seen == 0
