"""A page about the similarity of two texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stickytoken.attribution.result import Part, Why
from stickytoken.attribution.words import sentences
from stickytoken.errors import InputError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.reports._page import render

# Numbers stay legible on the deepest shade, on light and on dark ground.
_DEEPEST = 0.55


def similarity_page(found: Why, top: int = 10) -> str:
    """Return one self-contained HTML page: findings in words, strongest pairs, the matrix, deletions.

    Args:
        found: what `stickytoken.why` returned.
        top: pairs to list.
    """
    return render(
        "similarity.html.j2",
        [],
        title=found.model,
        found=found,
        lines=sentences(found, top),
        pairs=found.strongest(top),
        rows=shaded_rows(found),
    )


def shaded_rows(found: Why) -> list[tuple[Part, list[tuple[float, str]]]]:
    """Return each part of the first text with its contributions and their colours."""
    highest = float(np.abs(found.matrix).max()) or 1.0
    return [
        (part, [(float(value), _colour(float(value) / highest)) for value in values])
        for part, values in zip(found.first.parts, found.matrix, strict=True)
    ]


def write_similarity_page(found: Why, path: Path, top: int = 10) -> None:
    """Write the page to a file.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
        RunError: the file cannot be written.
    """
    require_place(path)
    write_atomically(path, similarity_page(found, top).encode("utf-8", "backslashreplace"))


def require_place(path: Path) -> None:
    """Refuse a path that no file can be written to.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: pass the name of a file to write")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist: create it, or pass another file")


def _colour(share: float) -> str:
    """Return the shade of a cell: red raises the similarity, blue lowers it."""
    red, green, blue = (214, 69, 65) if share >= 0 else (52, 101, 202)
    return f"rgba({red},{green},{blue},{_DEEPEST * abs(share):.3f})"
