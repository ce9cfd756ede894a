"""Open a cleaner from a run, its folder, a file, or JSON values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stickytoken.cleaning.cleaner import Cleaner
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from stickytoken.detection import Run

CleanerSource: TypeAlias = "Cleaner | Run | str | Path | Mapping[str, Any]"
"""A cleaner; a run or its folder; a file that `Cleaner.save` wrote; or what `Cleaner.to_json` returned."""


def open_cleaner(source: CleanerSource) -> Cleaner:
    """Return the cleaner for any supported source.

    Args:
        source: A cleaner; a run or its folder; a file that `Cleaner.save` wrote; or what `Cleaner.to_json`
            returned.

    Raises:
        InputError: The file or the JSON values are not a cleaner.
        RunError: The folder is not a run, is damaged or is not finished.
    """
    if isinstance(source, Cleaner):
        return source
    if isinstance(source, Mapping):
        return Cleaner.from_json(source)
    if isinstance(source, (str, os.PathLike)) and file_path("the cleaner", source).is_file():
        return Cleaner.from_file(source)
    return Cleaner.from_run(source)
