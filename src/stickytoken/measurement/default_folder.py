"""Default folders of results."""

from __future__ import annotations

import re
from pathlib import Path

_IDENTITY_SHOWN = 12


def folder_name(kind: str, identity: str) -> str:
    """Return ``<kind>-<identity>``, with the identity shortened.

    Args:
        kind: name of the detection method, or ``impact``.
        identity: SHA-256 of everything that the results depend on.
    """
    return f"{kind}-{identity[:_IDENTITY_SHOWN]}"


def default_folder(model: str, kind: str, identity: str) -> Path:
    """Return ``runs/<model>-<kind>-<identity>``, relative to the current folder.

    Args:
        model: name given by the user; of a path, only the last part is used, without special characters.
        kind: see `folder_name`.
        identity: see `folder_name`.
    """
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{folder_name(kind, identity)}"
