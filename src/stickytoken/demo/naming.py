"""Which token a visitor means, and how a token is named to one. Pure."""

from __future__ import annotations

import re

from stickytoken.demo.inputs import TOKEN_CHARACTERS
from stickytoken.detection.selection import choose_tokens, find_token
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.visible_text import visible
from stickytoken.vocabulary.categories import Vocabulary

_ID = re.compile(r"\s*#(\d{1,9})\s*", re.ASCII)
_DIGITS = re.compile(r"\s*\d+\s*", re.ASCII)


def named_token(vocabulary: Vocabulary, name: str | None) -> Token:
    """The token that a visitor calls ``name``: ``#`` with an id, a vocabulary string, or its text.

    Raises:
        InputError: there is none, there are several, or it cannot occur in text.
    """
    if name is None or not name.strip():
        raise InputError("no token is named: write one as in the vocabulary, or # and its id")
    if len(name) > TOKEN_CHARACTERS:
        raise InputError(f"the token has {len(name):,} characters, {TOKEN_CHARACTERS} are the most here")
    by_id = _ID.fullmatch(name)
    try:
        token_id = int(by_id.group(1)) if by_id else find_token(vocabulary, name)
    except InputError as error:
        if _DIGITS.fullmatch(name):
            raise InputError(f"{error}; if you mean the id, write #{name.strip()}") from error
        raise
    return choose_tokens(vocabulary, [token_id], None, 0)[0]


def name_of(vocabulary: Vocabulary, token_id: int) -> str:
    """What a visitor may type to name a token: its vocabulary string where that says it all, else its id."""
    name = vocabulary.tokens[vocabulary.ids.index(token_id)]
    try:
        found = named_token(vocabulary, name)
    except InputError:
        return f"#{token_id}"
    return name if found.id == token_id and visible(name) == name else f"#{token_id}"


def shown_name(vocabulary: Vocabulary, token_id: int) -> str:
    """The vocabulary string, every character of it visible."""
    return visible(vocabulary.tokens[vocabulary.ids.index(token_id)])
