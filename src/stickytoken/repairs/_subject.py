"""A model before and after its repair, and the tokens that were repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.insertion import Token
from stickytoken.methods.recheck import Tokens
from stickytoken.repairs.strategies import TOKENIZER, Strategy
from stickytoken.vocabulary.categories import Vocabulary

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

_CARRIER = "the river"
_COPIES = 4


@dataclass(frozen=True, slots=True)
class RepairedToken:
    """A token with the strategy that was chosen for it.

    Attributes:
        token_id: its id.
        token: its vocabulary string.
        text: its decoded text.
        strategy: what is done about it.
        reason: why.
        tried: lift beyond an ordinary token's of the strategies that were tried, in standard deviations.
    """

    token_id: int
    token: str
    text: str
    strategy: Strategy
    reason: str
    tried: tuple[tuple[Strategy, float], ...] = ()


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        original: the model before the repair.
        repaired: the model after it, loaded from its folder.
        folder: that folder.
        tokenizer: the folder of its tokenizer.
        vocabulary: vocabulary before the repair.
        tokens: the repaired tokens.
    """

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    folder: Path
    tokenizer: Path
    vocabulary: Vocabulary
    tokens: tuple[RepairedToken, ...]

    @property
    def ids(self) -> list[int]:
        """Ids of the repaired tokens."""
        return [token.token_id for token in self.tokens]

    @property
    def strategies(self) -> set[Strategy]:
        """The strategies that were used."""
        return {token.strategy for token in self.tokens}


def as_measured(encoder: IdEncoder, tokens: Sequence[RepairedToken]) -> Tokens:
    """Say how the copies of repaired tokens go into a text.

    Where a repair changes how text is tokenized, copies must go in as text: as separate words, unless only
    copies without spaces become the token.
    """
    found = Tokens([], [], [])
    for each in tokens:
        if each.strategy not in TOKENIZER:
            found.as_ids.append(Token(each.token_id, each.text))
        elif _count(encoder, each, each.text) > _count(encoder, each, f" {each.text.strip()}"):
            found.glued.append(Token(each.token_id, each.text))
        else:
            found.written.append(Token(each.token_id, each.text.strip()))
    return found


def _count(encoder: IdEncoder, token: RepairedToken, copy: str) -> int:
    (ids,) = encoder.tokenizer.encode_many([_CARRIER + copy * _COPIES])
    return ids.count(token.token_id)
