"""What texts are measured with: nothing, a sticky token, a benign one, or a mixture."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np

from stickytoken.insertion import Token

# The label of a token that the user named and no run calls sticky.
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
        kind: what its tokens are.
        tokens: the tokens whose copies go in; none for clean, several for a mixture.
        repetition: 0, 1, ... of the seeds.
        seed: of the repetition.
    """

    kind: Kind
    tokens: tuple[Token, ...]
    repetition: int
    seed: int

    def label(self, named: Collection[int]) -> str:
        """Return what tables call it: tokens are sticky only if a run says so, else they are named.

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
    """All conditions, those of one token together.

    The seed of a repetition is the same under every condition, so that a text gets its
    copies in the same places. A mixture of the benign tokens is as large as that of the
    sticky ones.
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
    """The repetitions of each token together."""
    return [
        list(repetitions) for _, repetitions in groupby(conditions, lambda each: (each.kind, each.tokens))
    ]


def gaps(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    """Draw the gap of each copy for random placement; step k has ``words + k`` words to go between.

    It is a function of the seed and the text, so that all conditions treat a text alike, whatever the order
    of computation.
    """
    generator = _generator(seed, text, "gaps")
    return tuple(int(generator.integers(words + step + 1)) for step in range(copies))


def turns(seed: int, text: str, kinds: int, copies: int) -> tuple[int, ...]:
    """Draw which of ``kinds`` tokens each copy of a mixture is; counts differ by at most one. See `gaps`."""
    generator = _generator(seed, text, "turns")
    kind = generator.permutation(kinds)
    return tuple(int(kind[step]) for step in generator.permutation(copies) % kinds)


def _generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
