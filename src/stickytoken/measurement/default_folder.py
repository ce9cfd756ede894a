"""Folders that results go to where the user names none."""

from __future__ import annotations

import re
from pathlib import Path

_IDENTITY_SHOWN = 12


def folder_name(kind: str, identity: str) -> str:
    """``<kind>-<identity>``, with the beginning of the identity.

    Args:
        kind: the method of a detection, or ``impact``.
        identity: sha256 of what the results depend on.
    """
    return f"{kind}-{identity[:_IDENTITY_SHOWN]}"


def default_folder(model: str, kind: str, identity: str) -> Path:
    """``runs/<model>-<kind>-<identity>`` below the present folder.

    Args:
        model: the name that the user gave; of a path its last part, without characters that a shell reads.
        kind: see `folder_name`.
        identity: see `folder_name`.
    """
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{folder_name(kind, identity)}"
