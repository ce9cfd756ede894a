"""A key goes to its server and nowhere else."""

import base64
import html
import json
import traceback
from urllib.parse import quote

import pytest

from embedding_server import RefusalError
from stickytoken.encoders import load_encoder
from stickytoken.encoders.endpoint.options import Secret, key_of, parse_address
from stickytoken.errors import EncodingError, InputError, MissingExtraError, ModelError

KEY = "sk-planted-0123456789-abcdefghij"


@pytest.mark.parametrize("variable", [None, "MY_SERVER_KEY"])
def test_a_server_that_asks_for_a_key_names_the_variable_to_set(serve, monkeypatch, variable):
    name = variable or "STICKYTOKEN_API_KEY"
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match=rf"variable {name} is empty: set it \(export {name}=\.\.\.\)"):
        serve(key=KEY).encoder(key_variable=variable)


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


def test_a_key_that_cannot_be_used_is_not_shown(serve, bert_folder, monkeypatch):
    with pytest.raises(InputError, match="not the name of an environment variable") as caught:
        serve().encoder(key_variable=KEY)
    assert KEY not in str(caught.value)
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "schlüssel")
    with pytest.raises(ModelError, match="has characters that no key has: copy it again"):
        serve().encoder()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY is empty: set it"):
        load_encoder("openai:text-embedding-3-small", tokenizer=str(bert_folder))


def test_without_the_sdk_the_extra_is_named(serve, monkeypatch):
    served = serve()
    monkeypatch.setattr("stickytoken.errors.find_spec", lambda package: None)
    with pytest.raises(
        MissingExtraError, match=r"endpoint needs an optional package: .*stickytoken\[endpoint\]"
    ):
        served.encoder()


@pytest.mark.parametrize("status", [400, 401, 500])
def test_no_error_behind_an_error_holds_a_key_that_the_server_repeats(serve, monkeypatch, status):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    served = serve(key=KEY, retry_after=None)
    found = served.encoder(patience=0.1)

    def refuse(body, key):
        raise RefusalError(status, f"Authorization: Bearer {KEY} and {KEY.upper()}")

    monkeypatch.setattr(served.server, "answer", refuse)
    with pytest.raises((ModelError, EncodingError)) as caught:
        found.encode(["never sent before"])
    error = caught.value
    if status == 401:
        assert "STICKYTOKEN_API_KEY (HTTP 401, Authorization: Bearer [key] and [key]): set" in str(error)
    assert KEY not in "".join(traceback.format_exception(error))
    while error is not None:
        shown = repr(error) + str(error) + repr(vars(error)) + "".join(map(str, error.args))
        assert KEY.lower() not in shown.lower()
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("key", ["ab", "s3cr", "a+b/c=123", 'a"b\\c&d<e', "sk-" + "x" * 300])
def test_keys_of_any_form_are_removed_however_they_are_written(key):
    secret = Secret(key)
    encoded = base64.b64encode(key.encode()).decode()
    for spelling in (key, json.dumps(key)[1:-1], html.escape(key), quote(key, safe=""), encoded):
        assert secret.removed_from(f"Bearer {spelling}, {spelling}") == "Bearer [key], [key]"
    assert (repr(secret), bool(secret), bool(Secret(""))) == ("<Secret>", True, False)
    assert Secret("ab").removed_from("abc") == "abc"
