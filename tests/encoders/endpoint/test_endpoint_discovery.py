"""What is found out about a server before anything else is sent, and what is refused there and then."""

import pytest

import tiny
from stickytoken.encoders import load_encoder
from stickytoken.errors import InputError, ModelError


def known(served, **options):
    return served.encoder(max_length=None, **options).capabilities


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        ({"batch_limit": 256}, {"batch": 256, "normalised": True}),
        ({"batch_limit": 100, "scale": 3.0}, {"batch": 64, "normalised": False}),
        ({"batch_limit": 1}, {"batch": 1}),
        ({"usage": "characters"}, {"counts_tokens": False, "overhead": 0}),
        ({"usage": "words"}, {"counts_tokens": False, "overhead": 0}),
        ({"usage": None}, {"counts_tokens": False, "batch": 256, "overhead": 0}),
        ({"said_usage": {"prompt_tokens": -5, "total_tokens": 10**30}}, {"counts_tokens": False}),
        ({"said_usage": {"prompt_tokens": "many", "total_tokens": float("nan")}}, {"counts_tokens": False}),
        ({}, {"counts_tokens": True, "overhead": pytest.approx(2.0), "tokens_per_unit": 1.0}),
    ],
)
def test_what_a_server_does_is_found(serve, behaviour, found):
    known = serve(**behaviour).encoder().capabilities
    assert {name: getattr(known, name) for name in found} == found


@pytest.mark.parametrize(
    ("behaviour", "said"), [({"scale": 0.0}, "of zeros"), ({"noise": 10.0}, "no further apart")]
)
def test_a_server_that_tells_no_two_texts_apart_is_refused(serve, behaviour, said):
    with pytest.raises(ModelError, match=said):
        serve(**behaviour).encoder()


@pytest.mark.parametrize(
    ("limit", "long", "said"),
    [(33, "truncate", "truncates"), (40, "refuse", "refuses"), (33, "fail", "refuses")],
)
def test_the_longest_text_is_found_to_the_token(serve, limit, long, said):
    found = known(serve(max_tokens=limit, long=long))
    assert (found.max_length, found.long) == (limit, said)


def test_with_noise_the_longest_text_is_found_from_below(serve):
    assert 14 <= known(serve(max_tokens=56, noise=0.002)).max_length <= 56


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
    found = serve(seconds=0.02, seconds_per_text=0.001).encoder()
    assert found.capabilities.request_seconds >= 0.021
    assert found.capabilities.token_seconds > 0
