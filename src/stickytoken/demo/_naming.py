"""Find the token that a visitor names, and name tokens in the app. Pure."""

from __future__ import annotations

from stickytoken.demo._inputs import TOKEN_CHARACTERS
from stickytoken.detection.selection import available_tokens, find_named
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.visible_text import visible
from stickytoken.vocabulary.categories import Vocabulary


def named_token(vocabulary: Vocabulary, name: object) -> Token:
    """Find the token that a visitor named: ``#`` and an id, a vocabulary string, or its text."""
    if not isinstance(name, str) or not name.strip():
        raise InputError("the token is empty: write it as in the vocabulary, or # and its id")
    if len(name) > TOKEN_CHARACTERS:
        raise InputError(f"the token has {len(name):,} characters, and the limit is {TOKEN_CHARACTERS}")
    return available_tokens(vocabulary, [find_named(vocabulary, name)])[0]


def name_of(vocabulary: Vocabulary, token_id: int) -> str:
    """Return what a visitor can type to name a token: its vocabulary string if that is enough, else #id."""
    name = vocabulary.tokens[_place(vocabulary, token_id)]
    try:
        found = named_token(vocabulary, name)
    except InputError:
        return f"#{token_id}"
    return name if found.id == token_id and visible(name) == name else f"#{token_id}"


def shown_name(vocabulary: Vocabulary, token_id: int) -> str:
    """Return the vocabulary string with every character visible."""
    return visible(vocabulary.tokens[_place(vocabulary, token_id)])


def _place(vocabulary: Vocabulary, token_id: int) -> int:
    if token_id not in vocabulary.ids:
        raise InputError(f"the vocabulary has no token id {token_id}: choose a token from the list")
    return vocabulary.ids.index(token_id)
