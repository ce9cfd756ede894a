"""Queries, documents and texts that are neither: many models encode them differently."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar, cast

from stickytoken.encoders.protocol import Encoder, EncoderIdentity, capabilities_of, quote_text


class Role(StrEnum):
    """What a text is for."""

    QUERY = "query"
    DOCUMENT = "document"


AnyEncoder = TypeVar("AnyEncoder", bound=Encoder)


def in_role(encoder: AnyEncoder, role: Role | None) -> AnyEncoder:
    """Return the encoder of texts in a role; ``encoder`` itself if the model encodes all texts alike.

    The role None is for texts without a role, such as sentences. An encoder that distinguishes roles has a
    method `in_role`.
    """
    # The class is asked, because a wrapper whose `__getattr__` passes on all attributes would call `in_role`
    # of the encoder that it wraps, and return an encoder without the wrapper.
    if not hasattr(type(encoder), "in_role"):
        return encoder
    of_role: AnyEncoder = cast("Any", encoder).in_role(role)
    return of_role


def identity_of_queries(documents: Encoder) -> EncoderIdentity | None:
    """Return the identity of the encoder of queries; None if queries are encoded like documents.

    Args:
        documents: the encoder of documents.
    """
    queries = in_role(documents, Role.QUERY)
    return None if queries is documents else queries.identify()


def prompts_of(encoder: Encoder) -> dict[str, str]:
    """Return the prompts that are put before documents and before queries, keyed by role."""
    return {role.value: capabilities_of(in_role(encoder, role)).prompt for role in Role}


def describe_prompts(encoder: Encoder) -> str | None:
    """Describe the prompts and routes of documents and queries.

    Return None if documents and queries are encoded alike and without a prompt.
    """
    documents = capabilities_of(in_role(encoder, Role.DOCUMENT))
    queries = capabilities_of(in_role(encoder, Role.QUERY))
    phrases = []
    if documents.prompt != queries.prompt:
        before_documents = quote_text(documents.prompt) if documents.prompt else "none"
        before_queries = quote_text(queries.prompt) if queries.prompt else "none"
        phrases.append(f"prompts: {before_documents} before documents, {before_queries} before queries")
    elif documents.prompt:
        phrases.append(f"prompt: {quote_text(documents.prompt)}")
    if documents.route != queries.route and documents.prompt == queries.prompt:
        phrases.append(f"routes: {documents.route} for documents, {queries.route} for queries")
    return "; ".join(phrases) or None
