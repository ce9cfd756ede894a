"""What is found out about a server before anything else is sent, what is refused there, and where keys go."""

import base64
import html
import json
import traceback
from urllib.parse import quote

import numpy as np
import pytest

import tiny
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.encoders.endpoint import Secret, parse_address, read_key
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.settings.endpoint import EndpointOptions


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        ({"usage": "characters"}, {"counts_tokens": False, "overhead": 0}),
        ({"usage": "words"}, {"counts_tokens": False, "overhead": 0}),
        ({"usage": None}, {"counts_tokens": False, "overhead": 0}),
        ({"said_usage": {"prompt_tokens": -5, "total_tokens": 10**30}}, {"counts_tokens": False}),
        ({"said_usage": {"prompt_tokens": "many", "total_tokens": float("nan")}}, {"counts_tokens": False}),
        ({"batch_limit": 1}, {"counts_tokens": True, "overhead": pytest.approx(2.0)}),
        ({}, {"counts_tokens": True, "overhead": pytest.approx(2.0), "tokens_per_unit": 1.0}),
    ],
)
def test_what_a_server_does_is_found(serve, behaviour, found):
    server_facts = serve(**behaviour).encoder().server
    assert {name: getattr(server_facts, name) for name in found} == found


@pytest.mark.parametrize("behaviour", [{"scale": 0.0}, {"noise": 10.0, "base64": "refuse"}])
def test_a_server_that_tells_no_two_texts_apart_is_refused(serve, behaviour):
    served = serve(**behaviour)
    with pytest.raises(ModelError, match=naming(served.name)):
        served.encoder()


@pytest.mark.parametrize("listed", ["nested", "integers", "bits"])
def test_vectors_that_are_sent_as_something_else_are_refused(serve, listed):
    served = serve(listed=listed)
    with pytest.raises(ModelError, match=naming(served.name)):
        served.encoder()


@pytest.mark.parametrize("kind", ["<f8", "<f2", "bfloat16", ">f4", "i1", "bits", "<c16"])
def test_lists_are_used_if_base64_holds_other_numbers(serve, encoder, kind):
    endpoint = serve(base64_kind=kind).encoder()
    np.testing.assert_array_equal(endpoint.encode(["river"]), encoder.encode(["river"]))
    assert endpoint.server.encoding == "float"


def test_other_numbers_in_base64_are_noticed_in_a_later_session(serve, encoder):
    served = serve()
    served.encoder().encode(["river"])
    served.server.behaviour.base64_kind = "<f8"
    np.testing.assert_array_equal(served.encoder().encode(["stone"]), encoder.encode(["stone"]))


def test_fields_that_an_endpoint_requires_are_sent_and_change_the_identity(serve):
    served = serve(required_fields={"input_type": "passage"})
    with pytest.raises(ModelError, match=naming("input_type")):
        served.encoder()
    passages = served.encoder(request_fields='{"input_type": "passage"}')
    assert passages.spec.endpoint.request_fields == '{"input_type": "passage"}'
    served.server.behaviour.required_fields = {}
    plain = served.encoder()
    assert passages.identify() != plain.identify()
    assert passages.answer_cache.folder != plain.answer_cache.folder


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("passage", naming("request_fields", "JSON")),
        ("[1]", naming("request_fields", "object")),
        ('{"input": "x"}', naming("request_fields", "input")),
        ('{"API_KEY": "sk-secret"}', naming("request_fields", "API_KEY")),
    ],
)
def test_fields_that_cannot_be_sent_are_refused(value, said):
    with pytest.raises(InputError, match=said) as caught:
        EndpointOptions(request_fields=value)
    assert "sk-secret" not in str(caught.value)


def test_the_noise_between_calls_is_measured(serve):
    quiet = serve().encoder()
    noisy = serve(noise=0.01).encoder()
    assert quiet.capabilities.noise < 1e-7
    # Both vectors of a cosine carry noise of this size in the direction of the other.
    assert 0.003 < noisy.capabilities.noise < 0.03
    assert noisy.server.least_cosine < 0.9999
    assert noisy.identify() != quiet.identify()
    # Noise that depends on the request.
    server_facts = serve(batch_noise=0.01).encoder().server
    assert server_facts.noise > 0.001


def test_a_tokenizer_of_another_model_is_noticed(serve):
    other = tiny.wordpiece_tokenizer(words=["order", "included", "return", "strip", "pneumono", "example"])
    served = serve()
    with pytest.raises(ModelError, match=naming("tokenizer", served.name)) as caught:
        served.encoder(tokenizer=other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai:", naming("openai:", "model")),
        ("http://localhost:1/v1", naming("http://localhost:1/v1", "model")),
        ("http://#mini", naming("'http://'", "URL")),
        ("http://host:99999/v1#mini", naming("URL", "Port")),
        ("http://user:secret@host/v1#mini", naming("host")),
        ("http://host/v1?key=secret#mini", naming("host")),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(bert_folder, name, said):
    with pytest.raises(InputError, match=said) as caught:
        load_encoder(name, tokenizer=str(bert_folder))
    assert "secret" not in str(caught.value)


def test_what_cannot_be_reached_or_is_no_api_is_told_in_one_line(serve, bert_folder):
    served = serve()
    root = served.url.removesuffix("/v1")
    for name, phrase in (
        ("http://127.0.0.1:9/v1#mini", naming("http://127.0.0.1:9/v1")),
        (f"{served.url}#maxi", naming(404, "'maxi'")),
        (f"{root}#mini", naming("web page", f"{served.url}#mini")),
        (f"{root}/v1/more#mini", naming(404, "web page")),
        (f"{served.url}/embeddings/#mini", naming(404, f"{served.url}#mini")),
    ):
        with pytest.raises(ModelError, match=phrase) as caught:
            load_encoder(name, tokenizer=str(bert_folder))
        assert "\n" not in str(caught.value)


def test_refusals_during_the_questions_are_waited_for(serve):
    served = serve()
    served.server.behaviour.faults.extend(["429", "503", None, "500", "drop", None, "429", "429"])
    assert served.encoder().server.counts_tokens


def test_the_estimated_time_is_at_least_that_of_the_server(serve):
    server_facts = serve(seconds=0.02, seconds_per_text=0.001).encoder().server
    assert server_facts.request_seconds >= 0.021
    assert server_facts.token_seconds > 0


KEY = "sk-planted-0123456789-abcdefghij"


@pytest.mark.parametrize("variable", [None, "MY_SERVER_KEY"])
def test_a_server_that_asks_for_a_key_names_the_variable_to_set(serve, monkeypatch, variable):
    name = variable or "STICKYTOKEN_API_KEY"
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match=naming(name, "empty")):
        serve(key=KEY).encoder(key_variable=variable)


def test_each_server_gets_only_the_key_that_was_made_for_it(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "for-own")
    assert read_key(parse_address("openai:m")).reveal() == "for-openai"
    assert read_key(parse_address("http://localhost:1/v1#m")).reveal() == "for-own"
    assert read_key(parse_address("http://localhost:1/v1#m", "OPENAI_API_KEY")).reveal() == "for-openai"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1/")
    moved = parse_address("openai:m")
    assert (moved.name, moved.key_variable) == ("http://localhost:1/v1#m", "OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert not read_key(moved)


def test_a_key_that_cannot_be_used_is_not_shown(serve, bert_folder, monkeypatch):
    with pytest.raises(InputError, match=naming("key_variable")) as caught:
        serve().encoder(key_variable=KEY)
    assert KEY not in str(caught.value)
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "schlüssel")
    with pytest.raises(ModelError, match=naming("STICKYTOKEN_API_KEY")):
        serve().encoder()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match=naming("OPENAI_API_KEY", "empty")):
        load_encoder("openai:text-embedding-3-small", tokenizer=str(bert_folder))


@pytest.mark.parametrize("status", [400, 401, 500])
def test_no_error_behind_an_error_holds_a_key_that_the_server_repeats(serve, monkeypatch, status):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    served = serve(key=KEY, retry_after=None)
    encoder_found = served.encoder(patience=0.1)

    behaviour = served.server.behaviour
    behaviour.bad_text = ""  # every text
    behaviour.bad_status = status
    behaviour.said = f"Authorization: Bearer {KEY} and {KEY.upper()}"
    with pytest.raises((ModelError, EncodingError)) as caught:
        encoder_found.encode(["never sent before"])
    error = caught.value
    if status == 401:
        assert says(str(error), "STICKYTOKEN_API_KEY", 401, "Bearer [key] and [key]")
    assert KEY not in "".join(traceback.format_exception(error))
    while error is not None:
        error_texts = repr(error) + str(error) + repr(vars(error)) + "".join(map(str, error.args))
        assert KEY.lower() not in error_texts.lower()
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("key", ["ab", "s3cr", "a+b/c=123", 'a"b\\c&d<e', "sk-" + "x" * 300])
def test_keys_of_any_form_are_removed_however_they_are_written(key):
    secret = Secret(key)
    encoded = base64.b64encode(key.encode()).decode()
    for spelling in (key, json.dumps(key)[1:-1], html.escape(key), quote(key, safe=""), encoded):
        assert secret.removed_from(f"Bearer {spelling}, {spelling}") == "Bearer [key], [key]"
    assert (repr(secret), bool(secret), bool(Secret(""))) == ("<Secret>", True, False)
    assert Secret("ab").removed_from("abc") == "abc"
