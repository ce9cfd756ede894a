"""Conditions that texts are measured under: no copies, a sticky token, a benign token, or a mixture."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np

from stickytoken.insertion import Token

# Label of a token that the user named and no run calls sticky.
NAMED = "named"


class Kind(StrEnum):
    """Kinds of conditions."""

    CLEAN = "clean"
    STICKY = "sticky"
    BENIGN = "benign"


@dataclass(frozen=True)
class Condition:
    """One way to edit all texts.

    Attributes:
        kind: kind of its tokens.
        tokens: tokens to insert; none for clean texts, several for a mixture.
        repetition: index of the repetition.
        seed: seed of the repetition.
    """

    kind: Kind
    tokens: tuple[Token, ...]
    repetition: int
    seed: int

    def label(self, named: Collection[int]) -> str:
        """Return the name of the condition in tables: tokens that no run calls sticky are "named".

        Args:
            named: ids of measured tokens that no run calls sticky.
        """
        nobody = self.kind is Kind.STICKY and any(token.id in named for token in self.tokens)
        kind = NAMED if nobody else self.kind.value
        return f"{kind} mixture" if self.mixture else kind

    @property
    def mixture(self) -> bool:
        """Whether several tokens share the copies."""
        return len(self.tokens) > 1


def make_conditions(
    sticky: Sequence[Token], benign: Sequence[Token], seed: int, repetitions: int
) -> list[Condition]:
    """List all conditions, grouped by token.

    A repetition has the same seed under every condition, so that a text gets its copies in the same places.
    The mixture of benign tokens has as many tokens as that of sticky ones.
    """
    groups: list[tuple[Kind, tuple[Token, ...]]] = [(Kind.CLEAN, ())]
    groups += [(Kind.STICKY, (token,)) for token in sticky]
    groups += [(Kind.BENIGN, (token,)) for token in benign]
    if len(sticky) > 1:
        groups += [(Kind.STICKY, tuple(sticky)), (Kind.BENIGN, tuple(benign[: len(sticky)]))]
    return [
        Condition(kind, tokens, repetition, seed + repetition)
        for kind, tokens in groups
        for repetition in range(repetitions)
    ]


def grouped(conditions: Sequence[Condition]) -> list[list[Condition]]:
    """Group the repetitions of each token."""
    return [
        list(repetitions) for _, repetitions in groupby(conditions, lambda each: (each.kind, each.tokens))
    ]


def gaps(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    """Draw a gap for each copy for random placement, where copy k goes between ``words + k`` words.

    The draw depends only on the seed and the text, so all conditions treat a text alike, in any order of
    computation.
    """
    generator = _generator(seed, text, "gaps")
    return tuple(int(generator.integers(words + step + 1)) for step in range(copies))


def turns(seed: int, text: str, kinds: int, copies: int) -> tuple[int, ...]:
    """Draw the token of each copy of a mixture; counts differ by at most one. Seeded like `gaps`."""
    generator = _generator(seed, text, "turns")
    kind = generator.permutation(kinds)
    return tuple(int(kind[step]) for step in generator.permutation(copies) % kinds)


def _generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
