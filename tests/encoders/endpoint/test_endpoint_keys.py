"""A key goes to its server and nowhere else."""

import base64
import html
import json
import os
import traceback

import pytest

import tiny
from embedding_server import RefusalError
from stickytoken.encoders.endpoint.options import Secret, key_of, parse_address
from stickytoken.errors import EncodingError, InputError, MissingExtraError, ModelError

KEY = "sk-planted-0123456789-abcdefghij"


def every_byte_below(folder):
    for root, _, files in os.walk(folder):
        for file in files:
            with open(os.path.join(root, file), "rb") as stream:  # noqa: PTH118, PTH123 - any name
                yield stream.read()


def test_a_key_opens_the_server_and_is_kept_nowhere(serve, own_cache, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    served = serve(key=KEY)
    found = served.encoder()
    found.encode(tiny.sentences(5))
    found.endpoint.answers.close()
    kept = list(every_byte_below(own_cache))
    assert kept
    assert all(KEY.encode() not in content for content in kept)
    assert KEY not in repr(found) + repr(found.endpoint.__dict__) + repr(found.spec) + str(found.identity)


@pytest.mark.parametrize("status", ["wrong key", "temporary"])
def test_a_key_that_the_server_repeats_is_not_shown(serve, monkeypatch, status):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    served = serve(key="another" if status == "wrong key" else KEY)
    served.server.behaviour.faults.extend(["500"] * 20)
    try:
        served.encoder()
    except ModelError as error:
        shown = "".join(traceback.format_exception(error)) + str(error)
    else:
        raise AssertionError("not refused")
    assert KEY not in shown
    if status == "wrong key":
        assert (
            "refuses the key in the environment variable STICKYTOKEN_API_KEY (HTTP 401, Incorrect API key "
            "provided: [key]): set the right one" in shown
        )


@pytest.mark.parametrize("variable", [None, "MY_SERVER_KEY"])
def test_a_server_that_asks_for_a_key_names_the_variable_to_set(serve, monkeypatch, variable):
    name = variable or "STICKYTOKEN_API_KEY"
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match=rf"variable {name} is empty: set it \(export {name}=\.\.\.\)"):
        serve(key=KEY).encoder(key_variable=variable)


def test_keys_are_removed_from_texts():
    secret = Secret("a+b/c=123")
    assert secret.removed_from("got a+b/c=123 and a%2Bb%2Fc%3D123") == "got [key] and [key]"
    assert (repr(secret), bool(secret), bool(Secret(""))) == ("<Secret>", True, False)
    assert Secret("ab").removed_from("abc") == "abc"


def test_each_server_gets_only_the_key_that_was_made_for_it(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "for-own")
    assert key_of(parse_address("openai:m")).reveal() == "for-openai"
    assert key_of(parse_address("http://localhost:1/v1#m")).reveal() == "for-own"
    assert key_of(parse_address("http://localhost:1/v1#m", "OPENAI_API_KEY")).reveal() == "for-openai"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1/")
    moved = parse_address("openai:m")
    assert (moved.name, moved.key_variable) == ("http://localhost:1/v1#m", "OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert not key_of(moved)


def test_a_key_in_place_of_the_name_of_its_variable_is_not_shown(serve):
    with pytest.raises(InputError, match="not the name of an environment variable") as caught:
        serve().encoder(key_variable=KEY)
    assert KEY not in str(caught.value)


def test_a_key_with_characters_that_no_header_takes_is_refused(serve, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "schlüssel")
    with pytest.raises(ModelError, match="has characters that no key has: copy it again"):
        serve().encoder()


def test_without_the_sdk_the_extra_is_named(serve, monkeypatch):
    served = serve()
    monkeypatch.setattr("stickytoken.errors.find_spec", lambda package: None)
    with pytest.raises(
        MissingExtraError, match=r"endpoint needs an optional package: .*stickytoken\[endpoint\]"
    ):
        served.encoder()


def chain(error):
    """All errors that led to one, and what they say."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_no_error_behind_an_error_holds_a_key_that_the_server_repeats(serve, monkeypatch, status):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    served = serve(key=KEY, retry_after=None)
    found = served.encoder(patience=0.1)
    said = f"Authorization: Bearer {KEY} and {KEY.upper()}"
    monkeypatch.setattr(served.server, "answer", lambda body, key: refuse(status, said))
    with pytest.raises((ModelError, EncodingError)) as caught:
        found.encode(["never sent before"])
    for error in chain(caught.value):
        shown = repr(error) + str(error) + repr(vars(error)) + "".join(map(str, error.args))
        assert KEY.lower() not in shown.lower()
    assert KEY not in "".join(traceback.format_exception(caught.value))


def refuse(status, said):
    raise RefusalError(status, said)


@pytest.mark.parametrize("key", ["ab", "s3cr", 'a"b\\c&d<e', "sk-" + "x" * 300])
def test_keys_of_any_form_are_removed_however_they_are_written(key):
    secret = Secret(key)
    spellings = (key, json.dumps(key)[1:-1], html.escape(key), base64.b64encode(key.encode()).decode())
    for spelling in spellings:
        assert secret.removed_from(f"Bearer {spelling}, {spelling}") == "Bearer [key], [key]"
