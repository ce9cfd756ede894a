"""A cleaner as JSON values, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stickytoken.errors import InputError
from stickytoken.validation import file_path

FORMAT = "stickytoken cleaner"
_PARTS: Mapping[str, type] = {"rules": dict, "actions": dict, "replacement": str, "source": dict}


def write_cleaner_file(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write the JSON values of a cleaner whole or not at all."""
    from stickytoken.measurement.atomic import write_atomically

    document = json.dumps(content, indent=2, ensure_ascii=True) + "\n"
    write_atomically(file_path("the file of the cleaner", path), document.encode("ascii"))


def read_cleaner_file(path: str | Path) -> dict[str, Any]:
    """Read the parts of a cleaner from a file."""
    place = file_path("the file of the cleaner", path)
    try:
        document = json.loads(place.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not a cleaner: it is not JSON ({error})") from error
    return cleaner_parts(document, str(place))


def cleaner_parts(document: object, name: str) -> dict[str, Any]:
    """Return the parts of a cleaner from its JSON values."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InputError(f"{name} is not a cleaner: write one with Cleaner.save or clean --rules-out")
    for part, kind in _PARTS.items():
        if not isinstance(document.get(part), kind):
            raise InputError(f"{name} is damaged: its entry {part!r} is missing or of the wrong type")
    return {part: document[part] for part in _PARTS}
