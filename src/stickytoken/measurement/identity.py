"""How the identities of two measurements differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
