"""Write files completely or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stickytoken.errors import RunError


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a temporary file next to ``path``, flush it to disk, then rename it to ``path``.

    Readers see the old file or the new one, never a part. The temporary file is removed after any error;
    after a kill, `remove_leftovers` removes it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(_reason(path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(_reason(folder, error)) from error


def move_folder(folder: Path, target: Path) -> None:
    """Flush a folder with all its files to disk, then rename it; the target does not exist or is empty."""
    try:
        for path in [*folder.rglob("*"), folder]:
            if path.is_dir():
                sync_folder(path)
            else:
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
        folder.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise RunError(_reason(target, error)) from error


def require_writable(folder: Path) -> None:
    """Refuse a folder that could not be written to, without creating it."""
    try:
        place = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
        if not place.is_dir():
            reason = "it is a file" if place == folder else f"{place} is a file"
        elif not os.access(place, os.W_OK | os.X_OK):
            reason = f"{place} is read-only"
        else:
            return
    except OSError as error:
        raise RunError(_reason(folder, error)) from error
    raise RunError(f"{folder} cannot be written: {reason}")


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed writer left behind. Hold the lock of the folder."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the operating system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left to write {path}: free some and run the same command again; "
            "it continues where it stopped"
        )
    return f"{path} cannot be written: {error.strerror or error}"


_IDENTITY_SHOWN = 12


def folder_name(kind: str, identity: str) -> str:
    """Return ``<kind>-<identity>``, with the identity shortened."""
    return f"{kind}-{identity[:_IDENTITY_SHOWN]}"


def default_folder(model: str, kind: str, identity: str) -> Path:
    """Return ``runs/<model>-<kind>-<identity>``, relative to the current folder."""
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{folder_name(kind, identity)}"
