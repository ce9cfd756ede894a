"""Which tokens are measured."""

from __future__ import annotations

from collections.abc import Sequence

from stickytoken.detection.run import Run
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.vocabulary.categories import Vocabulary


def worst_tokens(run: Run, count: int) -> list[int]:
    """Ids of the sticky tokens of a run, the worst first.

    Raises:
        InputError: the run has none.
    """
    found: list[int] = run.sticky["token_id"].to_list()
    if not found:
        raise InputError(
            f"the run in {run.path} has no sticky token, so there is nothing to measure: "
            "name tokens with --tokens to measure them all the same"
        )
    return found[:count]


def named_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Token]:
    """Tokens by id, in the order given, repeated ones once.

    Raises:
        InputError: there is none, or one cannot occur in text.
    """
    available = {token.id: token for token in vocabulary.available}
    for token_id in ids:
        if token_id not in available:
            raise InputError(f"token id {token_id} cannot occur in text: leave it out")
    if not ids:
        raise InputError("no token is named: there is nothing to measure")
    return [available[token_id] for token_id in dict.fromkeys(ids)]
