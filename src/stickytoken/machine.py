"""Small facts that are computed once and then read from the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("stickytoken")


def cache_folder() -> Path:
    if own := os.environ.get("STICKYTOKEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stickytoken"


def recalled(name: str) -> dict[str, Any] | None:
    try:
        found = json.loads((cache_folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def keep(name: str, values: Mapping[str, Any]) -> None:
    """Keep values under a name; a cache that cannot be written costs time, and is no error."""
    folder = cache_folder()
    temporary = folder / f".{name}.{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(folder / f"{name}.json")
    except OSError as error:
        _LOG.info("%s is not cached: %s", name, error)
        with suppress(OSError):
            temporary.unlink()


def available_cores() -> int:
    """Number of cores by affinity and by the quota of the container, at least 1."""
    from joblib import cpu_count

    return int(cpu_count())


def digest(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Precision(StrEnum):  # of matrix products
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
