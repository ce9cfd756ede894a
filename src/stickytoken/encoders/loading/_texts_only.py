"""Encoders of texts only: models behind an endpoint, objects and functions of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from stickytoken.encoders._text_encoder import FunctionModel, TextEncoder, TextFunction, TextModel
from stickytoken.encoders.endpoint.options import EndpointOptions
from stickytoken.encoders.endpoint.vocabulary import vocabulary_of
from stickytoken.encoders.protocol import Encoder, is_encoder
from stickytoken.errors import InputError


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """The source of the vocabulary for a model that does not bring its own.

    Attributes:
        tokenizer: an object, or what names a tokenizer.
        candidates: strings in its place, or a file of them.
    """

    tokenizer: Any = None
    candidates: str | Path | Sequence[str] | None = None

    def refuse(self, model: object, endpoint: EndpointOptions | None) -> None:
        """Refuse all of this for a model that brings its own."""
        said = {"tokenizer": self.tokenizer, "candidates": self.candidates, "endpoint": endpoint}
        if given := [name for name, value in said.items() if value is not None]:
            raise InputError(
                f"{', '.join(given)} cannot be set on {model}, which is neither a model behind an endpoint "
                "nor a function: leave it out"
            )


def of_endpoint(
    name: str, vocabulary: Vocabularies, given: dict[str, Any], options: EndpointOptions | None
) -> Encoder:
    """Load a model behind an endpoint.

    Args:
        name: of the model.
        vocabulary: where its vocabulary comes from.
        given: options of loading that were passed.
        options: of the endpoint.
    """
    from stickytoken.encoders.endpoint.encoder import load_endpoint

    prompt, max_length = given.pop("prompt", None), given.pop("max_length", None)
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be set on {name}, which is behind an endpoint: leave it out"
        )
    return load_endpoint(
        name,
        vocabulary.tokenizer,
        candidates=vocabulary.candidates,
        prompt=prompt,
        max_length=max_length,
        options=options,
    )


def _is_function(model: object) -> TypeGuard[TextFunction]:
    """Check for a function or a callable object, which a class and a torch module are not."""
    others = isinstance(model, type) or hasattr(model, "encode") or hasattr(model, "forward")
    return callable(model) and not others


def of_object(
    model: Encoder | TextModel | TextFunction,
    vocabulary: Vocabularies,
    given: dict[str, Any],
    endpoint: EndpointOptions | None,
) -> Encoder:
    """Return an encoder unchanged, or wrap an object or a function that encodes texts.

    Args:
        model: the object.
        vocabulary: that of a function.
        given: options of loading that were passed.
        endpoint: options of an endpoint that were passed.
    """
    if _is_function(model):
        tokenizer = vocabulary_of(vocabulary.tokenizer, vocabulary.candidates)
        own = FunctionModel(model, tokenizer, given.pop("max_length", None))
        Vocabularies().refuse(own.name, endpoint)
        encoder: Encoder = TextEncoder(own)
    else:
        encoder = model if is_encoder(model) else TextEncoder(model)
        vocabulary.refuse(encoder.name, endpoint)
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be set on {encoder.name}, a {type(model).__name__} that is already "
            "loaded: set it on the object and leave it out here"
        )
    return encoder
