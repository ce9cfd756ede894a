"""The tokens that a user names for a probe."""

from __future__ import annotations

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.vocabulary.categories import Vocabulary


def probed_token(vocabulary: Vocabulary, token_id: int, insertion: Insertion) -> Token:
    """A token by its id.

    Raises:
        InputError: there is no such id, or text insertion cannot produce it.
    """
    try:
        place = vocabulary.ids.index(token_id)
    except ValueError:
        raise InputError(
            f"the vocabulary has no token id {token_id}: it has {vocabulary.ids[0]} to {vocabulary.ids[-1]}"
        ) from None
    category = vocabulary.categories[place]
    if insertion is Insertion.TEXT and not category.available:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[place]!r}) cannot occur in text ({category.value}): "
            "probe it with ids insertion"
        )
    return Token(token_id, vocabulary.decoded[place])
