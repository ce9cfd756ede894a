"""The identity of a measurement: everything that can change its numbers, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from stickytoken.encoders.protocol import EncoderIdentity


LATER = {"later": True}
"""Metadata of a setting that was added later: at its default it is no part of an identity, so that what was
measured before keeps its own."""


def settings_values(settings: DataclassInstance) -> dict[str, Any]:
    """Return the settings that an identity rests on, as read back from a file: tuples become lists."""
    unset = {
        each.name
        for each in fields(settings)
        if each.metadata.get("later") and getattr(settings, each.name) == each.default
    }
    values: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return {name: value for name, value in values.items() if name not in unset}


def identity_of(
    version: int, encoder: EncoderIdentity, settings: DataclassInstance, **inputs: Any
) -> dict[str, Any]:
    """Collect the parts of an identity as JSON values, ready for `stickytoken.hashing.digest`.

    Batch size, device, threads and engine are left out, because they change nothing beyond rounding.
    So are names and paths.

    Args:
        version: version of the computation, increased when the same inputs give different numbers.
        encoder: identity of the model, computed for this measurement and not cached from an earlier one.
        settings: a dataclass.
        inputs: anything else that can change the numbers, as JSON values.
    """
    return {
        "version": version,
        "encoder": asdict(encoder),
        **inputs,
        "settings": settings_values(settings),
    }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Name the parts in which two identities differ, such as ``settings.seed``."""
    found: list[str] = []
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            found += differences(mine, other, f"{prefix}{key}.")
        elif mine != other:
            found.append(f"{prefix}{key}")
    return found
