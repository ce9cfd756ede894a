"""Whatever goes wrong on the way: the same vectors in the end, or one line that says why not."""

import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import tiny
from embedding_server import BROKEN_DATA, Behaviour, EmbeddingServer
from stickytoken.encoders import load_encoder
from stickytoken.encoders.endpoint._answers import Answers
from stickytoken.errors import ModelError

TEXTS = tiny.sentences(120)


def paid(served):
    return [text for text in served.server.texts if text in set(TEXTS)]


@pytest.mark.parametrize(
    "fault",
    [
        "408",
        "409",
        "429",
        "500",
        "502",
        "503",
        "drop",
        "cut",
        *(each for each in BROKEN_DATA if each != "other dimension"),
    ],
)
def test_a_fault_is_asked_about_again_and_nothing_is_paid_twice(serve, encoder, fault):
    served = serve(batch_limit=16)
    found = served.encoder()
    served.server.behaviour.faults.extend([None, fault, None, fault, fault])
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert sorted(paid(served)) == sorted(TEXTS)


def test_a_burst_of_refusals_with_a_wait_is_waited_for(serve, encoder):
    served = serve(batch_limit=8, retry_after="0.2")
    found = served.encoder()
    served.server.behaviour.faults.extend([None, *["429"] * 6])
    waits = []
    found.endpoint.waits = lambda reason, seconds: waits.append(seconds)
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert sorted(paid(served)) == sorted(TEXTS)


@pytest.mark.slow
def test_a_slow_answer_is_given_up_and_asked_for_again(serve, encoder):
    served = serve(batch_limit=32)
    found = served.encoder(request_seconds=0.7)
    served.server.behaviour.faults.extend([None, "slow"])
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    "told", [{"shuffle": True}, {"without_places": True}, {"base64": "ignore"}, {"base64": "refuse"}]
)
def test_all_forms_of_an_answer_are_read(serve, encoder, told):
    found = serve(**told).encoder()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert found.capabilities.encoding == ("float" if told.get("base64") == "refuse" else "base64")


def test_a_server_that_stays_broken_ends_the_run_with_its_reason(serve):
    served = serve(batch_limit=32, retry_after=None)
    found = served.encoder(patience=0.5)
    served.server.behaviour.faults.extend([None, *["500"] * 500])
    with pytest.raises(
        ModelError, match=r"no usable answer in \d+ attempts.*HTTP 500, told to.*kept"
    ) as caught:
        found.encode(TEXTS)
    assert "\n" not in str(caught.value)
    served.server.behaviour.faults.clear()
    found.encode(TEXTS)
    assert sorted(paid(served)) == sorted(TEXTS)


def test_a_wait_longer_than_the_patience_ends_the_run_at_once(serve):
    served = serve(retry_after="3600")
    found = served.encoder()
    served.server.behaviour.faults.append("429")
    with pytest.raises(ModelError, match=r"asks to wait for 3,6.. s, longer than the 600 s"):
        found.encode(TEXTS)


@pytest.mark.slow
def test_a_server_that_is_restarted_in_the_middle_is_waited_for(encoder, bert_folder):
    first = EmbeddingServer.of(encoder, Behaviour(batch_limit=8, seconds=0.02))
    second = EmbeddingServer.of(encoder, Behaviour(batch_limit=8))
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


def test_several_threads_may_encode_at_once(serve, encoder):
    found = serve(batch_limit=8).encoder()
    results = {}
    threads = [
        threading.Thread(target=lambda k=k: results.update({k: found.encode(TEXTS[10 * k : 10 * k + 30])}))
        for k in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, vectors in results.items():
        np.testing.assert_array_equal(vectors, encoder.encode(TEXTS[10 * k : 10 * k + 30]))


def test_the_first_answer_to_a_text_stays(tmp_path):
    answers = Answers(tmp_path / "kept")
    assert not answers.exists
    assert (len(answers), answers.fact("x"), answers.find(["a"])) == (0, None, {})
    answers.keep({"a": np.ones(3, np.float32)})
    answers.keep({"a": np.zeros(3, np.float32), "b": np.full(3, 2, np.float32)})
    again = Answers(tmp_path / "kept")
    assert {text: row.tolist() for text, row in again.find(["a", "b", "c"]).items()} == {
        "a": [1.0] * 3,
        "b": [2.0] * 3,
    }
    assert len(again.find([str(k) for k in range(1200)])) == 0
