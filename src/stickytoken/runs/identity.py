"""The identity of a run: a hash of everything that can change its numbers, nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stickytoken.detection.pairs import SentencePair
from stickytoken.encoders.protocol import EncoderIdentity
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


def digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON of a value."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def pairs_fingerprint(pairs: Sequence[SentencePair]) -> str:
    """Return the sha256 over pairs in order."""
    return digest([[pair.sentence1, pair.sentence2, pair.similarity] for pair in pairs])


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names of the parts in which two identities differ, such as ``settings.seed``."""
    found: list[str] = []
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            found += differences(mine, other, f"{prefix}{key}.")
        elif mine != other:
            found.append(f"{prefix}{key}")
    return found
