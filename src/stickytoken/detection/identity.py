"""The identity of a run: a hash of everything that can change its numbers, nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.hashing import digest
from stickytoken.insertion import Token

# Raise it when the same inputs would give other numbers than before.
IDENTITY_VERSION = 2


def identity_parts(
    encoder: EncoderIdentity, method: str, settings: Any, corpus: str, tokens: Sequence[Token] | None
) -> dict[str, Any]:
    """Everything that can change the numbers, as JSON values.

    Batch size, device, threads and engine are left out: they change nothing beyond
    rounding. So are names and paths.

    Args:
        encoder: the model.
        method: the detection method.
        settings: its settings, a dataclass.
        corpus: fingerprint of the sentences or pairs.
        tokens: the tokens that are looked at; None is all available ones.
    """
    return {
        "version": IDENTITY_VERSION,
        "encoder": asdict(encoder),
        "method": method,
        "settings": json.loads(json.dumps(asdict(settings))),  # as run.json gives it back: a tuple is a list
        "corpus": corpus,
        "tokens": None if tokens is None else digest([token.id for token in tokens]),
    }
