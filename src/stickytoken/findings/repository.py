"""The path of a file in its repository."""

from __future__ import annotations

from pathlib import Path


def repository_root(start: Path) -> Path:
    """Return the nearest folder at or above a folder that holds ``.git``, or else the folder itself."""
    here = start.absolute()
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            return folder
    return here


def repository_path(path: Path, root: Path) -> str | None:
    """Return a path relative to the root of a repository, with slashes; None if it lies outside."""
    try:
        inside = path.resolve().relative_to(root.resolve())
    except (ValueError, OSError):
        return None
    return None if inside == Path() else inside.as_posix()
