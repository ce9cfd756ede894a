"""A server over a tiny model, and an encoder of what is behind it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from embedding_server import Behaviour, EmbeddingServer
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.encoders.endpoint import _answers
from stickytoken.encoders.endpoint.encoder import EndpointEncoder
from stickytoken.encoders.endpoint.options import EndpointOptions

pytest.importorskip("openai", reason="openai is not installed")


class Served:
    """A running server, and encoders of its model.

    Attributes:
        server: the server.
        url: of its API.
    """

    def __init__(self, server: EmbeddingServer, url: str, tokenizer: str) -> None:
        self.server = server
        self.url = url
        self._tokenizer = tokenizer

    @property
    def name(self) -> str:
        return f"{self.url}#{self.server.behaviour.name}"

    def encoder(self, **options) -> EndpointEncoder:
        """An encoder; options of loading, and those of `EndpointOptions`."""
        own = {key: options.pop(key) for key in EndpointOptions.__dataclass_fields__ if key in options}
        if "candidates" not in options:
            options.setdefault("tokenizer", self._tokenizer)
        options.setdefault("max_length", 60)
        if options["max_length"] is None:
            del options["max_length"]
        found = load_encoder(self.name, endpoint=EndpointOptions(**own), **options)
        assert isinstance(found, EndpointEncoder)
        return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Answers of a test stay with it, and nothing waits long."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(folder))
    monkeypatch.delenv("STICKYTOKEN_API_KEY", raising=False)
    monkeypatch.setattr(_answers, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(_answers, "_LONGEST_PAUSE", 0.05)
    return folder


@pytest.fixture
def serve(encoder: Encoder, bert_folder) -> Iterator[Callable[..., Served]]:
    """A function that starts a server with a behaviour."""
    with ExitStack() as stack:

        def start(**behaviour) -> Served:
            server = EmbeddingServer.of(encoder, Behaviour(**behaviour))
            return Served(server, stack.enter_context(server.running()), str(bert_folder))

        yield start
