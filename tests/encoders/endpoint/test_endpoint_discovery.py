"""What is found out about a server before anything else is sent, and what is refused there and then."""

import numpy as np
import pytest

import tiny
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, InputError, ModelError


def known(served, **options):
    return served.encoder(max_length=None, **options).capabilities


@pytest.mark.parametrize(("limit", "found"), [(None, 256), (256, 256), (100, 64), (1, 1)])
def test_the_largest_request_is_found(serve, limit, found):
    assert serve(batch_limit=limit).encoder().capabilities.batch == found


@pytest.mark.parametrize(
    ("long", "said"), [("truncate", "truncates"), ("refuse", "refuses"), ("fail", "refuses")]
)
@pytest.mark.parametrize("limit", [33, 40])
def test_the_longest_text_is_found_to_the_token(serve, long, said, limit):
    found = known(serve(max_tokens=limit, long=long))
    assert (found.max_length, found.long) == (limit, said)


def test_with_noise_the_longest_text_is_found_from_below(serve):
    found = known(serve(max_tokens=56, noise=0.002))
    assert found.max_length is not None
    assert 14 <= found.max_length <= 56


@pytest.mark.parametrize("empty", ["vector", "zero", "refuse"])
def test_what_an_empty_text_gives_is_found(serve, empty):
    found = serve(empty=empty).encoder().capabilities
    assert found.empty == {"vector": "zero", "zero": "zero", "refuse": "refuses"}[empty]


@pytest.mark.parametrize(("scale", "normalised"), [(1.0, True), (3.0, False)])
def test_the_length_of_vectors_is_found(serve, scale, normalised):
    assert serve(scale=scale).encoder().capabilities.normalised is normalised


def test_the_noise_between_calls_is_measured(serve):
    quiet, noisy = serve().encoder(), serve(noise=0.01).encoder()
    assert quiet.noise < 1e-7
    # Both vectors of a cosine carry noise of this size in the direction of the other.
    assert 0.003 < noisy.noise < 0.03
    assert noisy.capabilities.least_cosine < 0.9999
    assert noisy.identity != quiet.identity


def test_noise_that_depends_on_the_request_is_found(serve):
    found = serve(batch_noise=0.01).encoder().capabilities
    assert found.call_noise < 1e-7
    assert found.batch_noise > 0.001


def test_the_tokens_that_the_server_counts_are_compared(serve):
    assert serve().encoder().capabilities.overhead == pytest.approx(2.0)
    for usage in ("characters", "words", None):
        found = serve(usage=usage).encoder().capabilities
        assert (found.counts_tokens, found.overhead) == (False, 0.0)


def test_a_tokenizer_of_another_model_is_noticed(serve):
    other = tiny.wordpiece_tokenizer(words=["order", "included", "return", "strip", "pneumono", "example"])
    with pytest.raises(
        ModelError,
        match=r"tokenizer does not belong to .* \d+ tokens more, and the server counts \d+ more: pass",
    ) as caught:
        serve().encoder(tokenizer=other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai:", "names no model"),
        ("http://localhost:1/v1", "names no model"),
        ("http://#mini", "is not the URL of an endpoint"),
        ("http://host:99999/v1#mini", "malformed"),
        ("http://user:secret@host/v1#mini", "has a user, a password or parameters"),
        ("http://host/v1?key=secret#mini", "has a user, a password or parameters"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(bert_folder, name, said):
    with pytest.raises(InputError, match=said) as caught:
        load_encoder(name, tokenizer=str(bert_folder))
    assert "secret" not in str(caught.value)


def test_openai_without_a_key_is_refused(bert_folder, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY is empty: set it"):
        load_encoder("openai:text-embedding-3-small", tokenizer=str(bert_folder))


def test_what_cannot_be_reached_or_is_no_api_is_told_in_one_line(serve, bert_folder):
    served = serve()
    root = served.url.removesuffix("/v1")
    for name, said in (
        ("http://127.0.0.1:9/v1#mini", "cannot be reached"),
        (f"{served.url}#maxi", "knows no such model or path .HTTP 404, The model 'maxi'"),
        (f"{root}#mini", f"a web page answers there, not an API: check the URL, .* as in {served.url}#mini"),
        (f"{root}/v1/more#mini", "HTTP 404, a web page"),
        (f"{served.url}/embeddings/#mini", rf"HTTP 404, .* as in {served.url}#mini"),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            load_encoder(name, tokenizer=str(bert_folder))
        assert "\n" not in str(caught.value)


def test_refusals_during_the_questions_are_waited_for(serve):
    served = serve(batch_limit=100)
    served.server.behaviour.faults.extend(["429", "503", None, "500", "drop", None, "429", "429", "429"])
    assert served.encoder().capabilities.batch == 64


def test_the_estimated_time_is_at_least_that_of_the_server(serve):
    found = serve(seconds=0.02, seconds_per_text=0.001).encoder().endpoint
    assert found.capabilities.request_seconds >= 0.021
    assert found.capabilities.token_seconds > 0
    assert found.seconds(10, 0) >= 0.21


def test_zero_vectors_are_refused_by_the_text(serve):
    found = serve(empty="zero").encoder()
    with pytest.raises(EncodingError, match="'' is zero"):
        found.encode([""])
    assert not np.any(found.encode([""], allow_zero=True))
