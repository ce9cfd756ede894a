"""A server over a tiny model, and an encoder of what is behind it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from embedding_server import Behaviour, EmbeddingServer
from stickytoken import load_encoder
from stickytoken.encoders import Encoder
from stickytoken.encoders.endpoint import _client
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.settings.endpoint import EndpointOptions

pytest.importorskip("openai", reason="openai is not installed")


class Served:
    def __init__(self, server: EmbeddingServer, url: str, tokenizer: str) -> None:
        self.server = server
        self.url = url
        self.name = f"{url}#{server.behaviour.name}"
        self._tokenizer = tokenizer

    def paid(self, texts: list[str]) -> list[str]:
        return sorted(text for text in self.server.texts if text in set(texts))

    def encoder(self, **options) -> EndpointEncoder:
        endpoint_options = {
            key: options.pop(key) for key in EndpointOptions.__dataclass_fields__ if key in options
        }
        if "candidates" not in options:
            options.setdefault("tokenizer", self._tokenizer)
        options.setdefault("max_length", 60)
        if options["max_length"] is None:
            del options["max_length"]
        endpoint = load_encoder(self.name, endpoint=EndpointOptions(**endpoint_options), **options)
        assert isinstance(endpoint, EndpointEncoder)
        return endpoint


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(folder))
    monkeypatch.delenv("STICKYTOKEN_API_KEY", raising=False)
    monkeypatch.setattr(_client, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(_client, "_LONGEST_PAUSE_SECONDS", 0.05)
    return folder


@pytest.fixture
def serve(encoder: Encoder, bert_folder) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(**behaviour) -> Served:
            server = EmbeddingServer(encoder, Behaviour(**behaviour))
            return Served(server, stack.enter_context(server.running()), str(bert_folder))

        yield start
