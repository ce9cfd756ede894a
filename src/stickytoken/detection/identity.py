"""The identity of a run: a hash of everything that can change its numbers, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.hashing import digest
from stickytoken.insertion import Token
from stickytoken.measurement.identity import identity_of

# Increase it when the same inputs give other numbers than before.
IDENTITY_VERSION = 4


def identity_parts(
    encoder: EncoderIdentity,
    method: str,
    settings: Any,
    corpus: str,
    tokens: Sequence[Token] | None,
    *,
    chosen_by_whole: bool = False,
) -> dict[str, Any]:
    """Collect everything that can change the numbers of a run, as JSON values.

    Args:
        encoder: the model.
        method: name of the method.
        settings: settings of the method, a dataclass.
        corpus: fingerprint of the sentences or pairs.
        tokens: the tokens to measure; None is all available ones.
        chosen_by_whole: whether the model truncates its vectors, and the whole ones choose what is encoded.
    """
    more = {"chosen_by": "whole vectors"} if chosen_by_whole else {}
    return identity_of(
        IDENTITY_VERSION,
        encoder,
        settings,
        method=method,
        corpus=corpus,
        tokens=None if tokens is None else digest([token.id for token in tokens]),
        **more,
    )
