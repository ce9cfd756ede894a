"""Which tokens are measured, and which ordinary ones they are compared with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stickytoken.detection.run import Run
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.vocabulary.categories import Category, Vocabulary


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


def match_benign(
    vocabulary: Vocabulary, sticky: Sequence[Token], flagged: Collection[int], each: int, seed: int
) -> list[Token]:
    """``each`` matched tokens for every sticky one: first a match of each, then the next of each.

    A match is of the same category and written alike (a word, the inside of a word, signs),
    not flagged, and as long, or as near to it as there is. Which one, among equally long
    ones, depends on the seed and the sticky token alone, unless another one has it already.

    Args:
        vocabulary: of the model.
        sticky: tokens that need a match.
        flagged: ids that may not serve.
        each: matches of each sticky token.
        seed: of the draw.

    Raises:
        InputError: the vocabulary has too few.
    """
    categories = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
    excluded = {*flagged, *(token.id for token in sticky)}
    candidates = [token for token in vocabulary.available if token.id not in excluded]
    taken: set[int] = set()
    found: list[Token] = []
    for round_number in range(each):
        for token in sticky:
            match = _match(token, candidates, categories, taken, [seed, token.id, round_number])
            taken.add(match.id)
            found.append(match)
    return found


def _match(
    token: Token,
    candidates: Sequence[Token],
    categories: dict[int, Category],
    taken: set[int],
    key: list[int],
) -> Token:
    free = [each for each in candidates if each.id not in taken]
    same = [each for each in free if categories[each.id] is categories[token.id]]
    alike = [each for each in same if _spelling(each.text) == _spelling(token.text)] or same or free
    if not alike:
        raise InputError("the vocabulary has too few tokens that are not flagged: ask for fewer benign ones")
    length = len(token.text)
    nearest = min(abs(len(each.text) - length) for each in alike)
    near = [each for each in alike if abs(len(each.text) - length) == nearest]
    return near[int(np.random.default_rng(key).integers(len(near)))]


def _spelling(text: str) -> tuple[bool, bool]:
    """Whether it begins a word, and whether it is made of letters."""
    return text[:1].isspace(), text.strip().isalpha()
