"""Load a model behind an endpoint by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stickytoken.encoders.endpoint.address import parse_address
from stickytoken.encoders.endpoint.encoder import EndpointEncoder, EndpointModel
from stickytoken.encoders.endpoint.options import EndpointOptions
from stickytoken.encoders.endpoint.vocabulary import vocabulary_of
from stickytoken.encoders.loading.spec import EncoderSpec
from stickytoken.encoders.prompting import Prompting
from stickytoken.errors import InputError


def load_endpoint(
    name: str,
    tokenizer: Any,
    *,
    candidates: str | Path | Sequence[str] | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    options: EndpointOptions | None = None,
) -> EndpointEncoder:
    """Load a model behind an endpoint, and find out what its server does.

    Args:
        name: ``openai:MODEL`` or ``URL#MODEL``.
        tokenizer: its tokenizer, as an object or as `load_vocabulary` takes it.
        candidates: in place of a tokenizer, strings to examine, or a file with one per line.
        prompt: text put before every input.
        max_length: longest input in tokens; None finds it out.
        options: how to use the endpoint.

    Raises:
        InputError: there is neither a tokenizer nor candidates, or an option cannot be used.
        ModelError: the server cannot be reached or used, or the tokenizer is not that of the model.
        MissingExtraError: the SDK is not installed.
    """
    options = options or EndpointOptions()
    address = parse_address(name, options.key_variable)
    vocabulary = vocabulary_of(tokenizer, candidates)
    if vocabulary is None:
        raise InputError(
            f"{name} is behind an endpoint, which hides its vocabulary: pass its tokenizer (a folder, a hub "
            "name, tiktoken:NAME), or a list of candidates if it is unpublished"
        )
    model = EndpointModel(address, vocabulary, prompt or "", options, max_length)
    sources = {"tokenizer": tokenizer, "candidates": candidates}
    return EndpointEncoder(model, _spec(name, sources, prompt, max_length, options))


def _spec(
    name: str,
    sources: dict[str, Any],
    prompt: str | None,
    max_length: int | None,
    options: EndpointOptions,
) -> EncoderSpec | None:
    """Say how to load the encoder again; None if its vocabulary is an object that only its maker has."""
    paths = {key: _absolute(value) for key, value in sources.items() if value is not None}
    if not all(isinstance(value, str) for value in paths.values()):
        return None
    return EncoderSpec(
        model=name,
        device=None,
        prompting=Prompting(prompt),
        dtype="float32",
        revision=None,
        trust_remote_code=False,
        max_length=max_length,
        token_budget=None,
        vocabulary=paths.get("tokenizer"),
        candidates=paths.get("candidates"),
        endpoint=options,
    )


def _absolute(value: Any) -> str | None:
    """Make a path independent of the working folder; a name stays as it is."""
    if not isinstance(value, (str, Path)):
        return None
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else str(value)
