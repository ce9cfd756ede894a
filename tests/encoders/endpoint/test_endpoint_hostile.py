"""Servers at their worst: what they answer is counted there, and what is paid for is counted here."""

import random
import time

import numpy as np
import pytest

import tiny
from embedding_server import ODD_BODIES
from fault_proxy import DAMAGED, HARMLESS, UNANSWERED, FaultProxy
from stickytoken.encoders import load_encoder
from stickytoken.encoders.endpoint import _server
from stickytoken.encoders.endpoint.cost import CostLimitError
from stickytoken.encoders.endpoint.options import EndpointOptions
from stickytoken.errors import EncodingError, ModelError

TEXTS = tiny.sentences(120)


def paid(served):
    return [text for text in served.server.texts if text in set(TEXTS)]


@pytest.mark.parametrize("fault", [*ODD_BODIES, "bad gzip", "gzip", "no usage"])
def test_odd_bodies_are_asked_about_again_and_harmless_ones_are_read(serve, encoder, fault):
    served = serve(batch_limit=16)
    found = served.encoder()
    served.server.behaviour.faults.extend([None, fault, None, fault])
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert sorted(paid(served)) == sorted(TEXTS)


def test_an_error_with_status_200_is_told(serve):
    served = serve()
    found = served.encoder(patience=0.2)
    served.server.behaviour.faults.extend(["error body"] * 100)
    with pytest.raises(ModelError, match=r"no usable answer in .* \(the model is overloaded\): check"):
        found.encode(TEXTS)


@pytest.mark.parametrize("ahead", [3, -100])
def test_a_date_after_which_to_ask_again_is_honoured(serve, encoder, ahead):
    served = serve(retry_after=f"date{ahead:+}")
    found = served.encoder()
    served.server.behaviour.faults.append("429")
    waits = []
    found.endpoint.waits = lambda reason, seconds: waits.append(seconds)
    started = time.monotonic()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert (time.monotonic() - started >= 1.0) == (ahead > 0)
    assert bool(waits) == (ahead > 0)


def test_refusals_without_end_end_the_run(serve):
    served = serve(retry_after="0.05")
    found = served.encoder(patience=0.5)
    served.server.behaviour.faults.extend(["429"] * 1000)
    with pytest.raises(ModelError, match=r"no usable answer in \d+ attempts .*HTTP 429, told to"):
        found.encode(TEXTS)
    assert found.endpoint.spending.pending == pytest.approx(0)


def test_an_account_without_credit_ends_the_run_at_once(serve):
    served = serve(said="You exceeded your current quota: insufficient_quota")
    found = served.encoder()
    served.server.behaviour.faults.append("429")
    seen = served.server.seen
    with pytest.raises(ModelError, match=r"no credit left \(HTTP 429, You exceeded"):
        found.encode(TEXTS)
    assert served.server.seen == seen + 1


def test_texts_that_a_server_always_refuses_are_found_in_few_requests(serve, encoder):
    bad = [TEXTS[7], TEXTS[80]]
    served = serve(refused_text=bad[0])
    found = served.encoder()
    seen = served.server.seen
    vectors = found.encode(TEXTS, allow_zero=True)
    assert np.flatnonzero(~vectors.any(axis=1)).tolist() == [7]
    good = [k for k in range(len(TEXTS)) if k != 7]
    np.testing.assert_array_equal(vectors[good], encoder.encode([TEXTS[k] for k in good]))
    assert sorted(paid(served)) == sorted(TEXTS[k] for k in good)
    assert served.server.seen - seen <= 2 * 7 + 4  # two requests per halving, and the check of the model
    assert found.endpoint.spending.pending == pytest.approx(0)


def test_a_redirect_takes_the_texts_along_and_not_the_key(serve, encoder, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "sk-planted-0123456789")
    served, other = serve(), serve()
    found = served.encoder()
    served.server.behaviour.elsewhere = f"{other.url.replace('127.0.0.1', 'localhost')}/embeddings"
    served.server.behaviour.faults.append("redirect")
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert set(other.server.authorizations) == {""}
    assert "sk-planted" in served.server.authorizations[0]


def test_a_request_that_takes_too_long_is_sent_in_halves(serve, encoder):
    served = serve(seconds_per_text=0.012)
    found = served.encoder(request_seconds=0.7)
    served.server.answered.clear()
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert min(map(len, served.server.answered)) <= 30


def test_a_slow_server_gets_requests_that_it_answers_in_time(serve):
    known = serve().encoder().capabilities.model_copy(update={"token_seconds": 0.0})
    assert known.most_tokens == _server._MOST_TOKENS
    slow = known.model_copy(update={"token_seconds": 0.005})
    assert slow.most_tokens == 1000
    assert known.model_copy(update={"token_seconds": 3.0}).most_tokens == _server._LEAST_TOKENS


def shuffled(seed):
    faults = [*UNANSWERED, *DAMAGED, *HARMLESS, *[None] * 14]
    random.Random(seed).shuffle(faults)
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_behind_a_proxy_that_harms_requests_the_vectors_are_the_same_and_the_bill_is_right(
    serve, encoder, bert_folder, seed
):
    served = serve(batch_limit=4)
    proxy = FaultProxy(served.url)
    with proxy.running() as url:
        found = load_encoder(f"{url}#mini", tokenizer=str(bert_folder), max_length=60)
        before, noted = served.server.tokens, found.endpoint.spending.tokens
        proxy.delivered.clear()
        proxy.behave(shuffled(seed))
        np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    assert set(proxy.harmed) == {*UNANSWERED, *DAMAGED, *HARMLESS}
    delivered = {text: count for text, count in proxy.delivered.items() if text in set(TEXTS)}
    assert delivered == dict.fromkeys(TEXTS, 1)
    # What broke before it reached the server is counted as well: it may have been paid for.
    assert (
        0
        <= (found.endpoint.spending.tokens - noted) - (served.server.tokens - before)
        <= 40 * (proxy.harmed["drop"] + 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("faults", [(), ("nan", "lost", "short", "500", "429")])
@pytest.mark.parametrize("limit", [3000, 5001])
def test_the_largest_sum_is_never_exceeded_whatever_the_server_does(serve, bert_folder, limit, faults):
    served = serve(batch_limit=8)
    proxy = FaultProxy(served.url, [None] * 40 + list(faults))
    with proxy.running() as url:
        name, options = f"{url}#mini", EndpointOptions(price_per_million=1e6, max_cost=limit)
        found = load_encoder(name, tokenizer=str(bert_folder), max_length=60, endpoint=options)
        with pytest.raises(CostLimitError, match=f"stopped at the maximum cost of {limit}"):
            found.encode(tiny.sentences(600))
        assert served.server.tokens <= limit
        assert served.server.tokens > limit - 8 * 30 * (2 + len(faults))
        again = load_encoder(name, tokenizer=str(bert_folder), max_length=60)
        again.encode(tiny.sentences(600))
    own = [text for text in proxy.delivered if text in set(tiny.sentences(600))]
    assert all(proxy.delivered[text] == 1 for text in own)


def test_nothing_is_found_out_for_more_than_the_largest_sum(serve):
    served = serve()
    with pytest.raises(CostLimitError, match="stopped at the maximum cost of 0: 0 requests"):
        served.encoder(price_per_million=1.0, max_cost=0)
    assert served.server.seen == 0


def test_an_empty_text_that_the_server_rejects_is_named(serve):
    found = serve(empty="refuse").encoder()
    with pytest.raises(EncodingError, match=r"refuses the text ''.*empty string"):
        found.encode(["a", ""])
