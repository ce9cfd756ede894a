"""JSON documents as the pages describe them: ``{"model", "rows": [{"id"}], "sizes": {name: number}}``."""

import json
import re
from collections.abc import Iterator
from typing import Any

from how_to import how_to_pages, text_of

_DESCRIPTION = re.compile(r'`(\{"[^`]*)`')
_ANYTHING = re.compile(r"\{\w[^{}]*\}|\{\.\.\.\}|(?<=\[)\.\.\.(?=\])|(?<=: )(?:[a-z]+|\.\.\.)")
_KEY_ALONE = re.compile(r'"[^"]*"(?=\s*[,}])')


def described() -> list[str]:
    """Every description of a document on a how-to page, on one line."""
    return [
        " ".join(found.split()) for page in how_to_pages() for found in _DESCRIPTION.findall(text_of(page))
    ]


def shape_of(text: str) -> Any:
    """Read a description: an object with its keys, a list with the shape of its entries, None for anything.

    A word without quotation marks stands for any value, ``...`` among keys for any further keys.
    """
    text = _ANYTHING.sub("null", text).replace("...", '"..."')
    return json.loads(_KEY_ALONE.sub(r"\g<0>: null", text))


def unlike(shape: Any, value: Any, place: str = "") -> Iterator[str]:
    """Compare a document with its description; yield what only one of them has. Null has every shape."""
    if isinstance(shape, list):
        for entry in value[:1]:
            yield from unlike(shape[0], entry, f"{place}[]")
    elif shape is not None and value is not None:
        open_ended = "..." in shape
        keys = shape.keys() - {"..."}
        yield from (f"{place}.{key} is not there" for key in sorted(keys - value.keys()))
        if not open_ended:
            yield from (f"{place}.{key} is not documented" for key in sorted(value.keys() - keys))
        for key in sorted(keys & value.keys()):
            yield from unlike(shape[key], value[key], f"{place}.{key}")
