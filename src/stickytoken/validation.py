"""Checks of user input (numbers, choices, paths, lists), and escaping of text for display."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from stickytoken.errors import InputError

Value = TypeVar("Value")

# Maximum length of a quoted value in an error, in characters.
_QUOTED = 80
# Maximum number of names that an error suggests.
_SUGGESTED = 3
# Minimum difflib similarity, from 0 to 1, between a suggested name and the mistyped name.
_CLOSE = 0.5


def real_number(name: str, value: Any) -> float:
    """Return a setting as a float; strings are rejected."""
    with suppress(TypeError, ValueError, OverflowError):  # raised for a value that isn't a number
        if not isinstance(value, (str, bytes)):
            return float(value)
    raise InputError(f"{name} is {shown(value)}: it must be a number")


def whole_number(name: str, value: Any, minimum: int | None = None) -> int:
    """Return a setting as an int; strings, booleans, fractions and values below the minimum are rejected."""
    # The value as errors show it. Numbers are shown by `str`, because `repr` shows NumPy's numbers as
    # np.int64(3).
    shown_value = " ".join(str(value).split())[:_QUOTED]
    if isinstance(value, str):
        shown_value = shown(value)
    number = None
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)
    is_other_type = isinstance(value, (str, bytes, bool))  # types that int() would accept
    if number is None or is_other_type or number != value:  # a fraction differs from its whole number
        raise InputError(f"{name} is {shown_value}: it must be a whole number")
    if minimum is not None and number < minimum:
        raise InputError(f"{name} is {shown_value}: it must be at least {minimum}")
    return number


def require_switch(name: str, value: object) -> None:
    """Raise InputError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {shown(value)}: it must be True or False")


def file_path(name: str, value: object) -> Path:
    """Return a path that a user passed, with ``~`` expanded."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise InputError(f"{name} is {shown(value)}: pass a path, as a string or a pathlib.Path")
    text = os.fspath(value)
    if not text.strip() or "\0" in text:
        raise InputError(f"{name} is {text!r}, which is not a path: pass the name of a file or folder")
    try:
        path = Path(text).expanduser()
        path.resolve()  # raises an error for circular links
        return path
    except RuntimeError as error:  # raised for an unknown user after ~, or for circular symbolic links
        raise InputError(f"{name} is {text!r}: {error}") from error


def or_default(name: str, value: object, default: Value) -> Value:
    """Return the settings object that a user passed, or the default if the user passed None.

    An object that does not have the type of the default is rejected.
    """
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise InputError(
            f"{name} is {shown(value)}: pass an object of type {type(default).__name__}, or leave it out"
        )
    return value


def require_callable(name: str, value: object) -> None:
    """Raise InputError unless a value can be called."""
    if not callable(value):
        raise InputError(f"{name} is {shown(value)}: pass a function")


def list_of(items: str, name: str, values: object, *, ordered: bool = True) -> list[Any]:
    """Return the user's values as a list. Strings, tables, mappings and multidimensional arrays are rejected.

    Args:
        items: What the list should contain, such as ``texts``; used in errors.
        name: Name of the argument; used in errors.
        values: A list, an iterator, a one-dimensional array, or a single column of a table.
        ordered: Whether the order of the values matters. If the order matters, sets are rejected.
    """
    if isinstance(values, (str, bytes, bytearray, os.PathLike)):
        raise InputError(f"{name} is {shown(values)}: pass a list of {items}")
    columns = _find_columns(values)
    if columns is not None:
        example = columns[0] if columns else "column"
        raise InputError(
            f"{name} is a table with the columns {', '.join(columns) or '(none)'}: pass one of them, "
            f"such as table[{example!r}]"
        )
    if isinstance(values, Mapping):
        raise InputError(f"{name} is a {type(values).__name__}: pass a list of {items}")
    if ordered and isinstance(values, (set, frozenset)):
        raise InputError(
            f"{name} is a {type(values).__name__}: pass a list of {items}, because the order matters"
        )
    if getattr(values, "ndim", 1) != 1:
        shape = getattr(values, "shape", "?")
        raise InputError(f"{name} is an array of shape {shape}: pass a list of {items}")
    # Convert a column of Polars, pandas or Arrow, or an array of NumPy, to a list of Python values.
    for method in ("to_list", "to_pylist", "tolist"):
        if not isinstance(values, type) and callable(getattr(values, method, None)):
            return list(getattr(values, method)())
    try:
        return list(values)  # type: ignore[call-overload,no-any-return]
    except TypeError:
        raise InputError(f"{name} is {shown(values)}: pass a list of {items}") from None


def shown(value: object) -> str:
    """Return a value's repr for an error message, on one line and at most 80 characters long."""
    return " ".join(reprlib.repr(value).split())[:_QUOTED]


def closest_names(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that resemble a mistyped name, ignoring case, closest first."""
    names_by_key = {candidate.lower(): candidate for candidate in names}
    keys = get_close_matches(name.lower(), names_by_key, n=_SUGGESTED, cutoff=_CLOSE)
    return [names_by_key[key] for key in keys]


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return a "did you mean" question for an error about a mistyped name; empty if no name is similar."""
    close_names = closest_names(name, names)
    return f" (did you mean {' or '.join(close_names)}?)" if close_names else ""


def _find_columns(values: object) -> list[str] | None:
    # Returns the names of a table's columns; None if ``values`` is no table.
    if isinstance(values, type):  # a class has the attributes of its tables, but no columns
        return None
    schema = getattr(values, "collect_schema", None)
    if callable(schema):  # a table of Polars
        return [str(name) for name in schema().names()]
    for attribute in ("column_names", "columns"):  # a table of Arrow or datasets, or of pandas
        names = getattr(values, attribute, None)
        if names is not None and not callable(names):
            return [str(name) for name in names]
    return None


# Characters that Markdown treats as markup: emphasis, code, links, tables, mathematics, mentions, and the
# parts of an address that turn it into a link.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$@!^]|(?<=:)/|(?<=www)\.|^[-+=]|(?<=^\d)[.)])", re.IGNORECASE)

# Characters that `str.isprintable` accepts although a terminal shows nothing or an empty box: blanks,
# fillers, and variation selectors that do not follow an emoji or a letter.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0]"
    "|(?<![^\\s'\"#\u2581])[\ufe00-\ufe0f\U000e0100-\U000e01ef](?!\u20e3)"
)


def as_json(document: Any) -> str:
    """Return a document as JSON text, with all characters outside ASCII escaped."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def visible(text: str) -> str:
    """Replace every control or invisible character of a text with an escape, such as ``\\x1b``."""
    escaped = "".join(
        character if character.isprintable() else _escape_character(character) for character in text
    )
    if escaped.isascii():  # true for most texts, which cannot contain characters of `_BLANK`
        return escaped
    return _BLANK.sub(lambda match: _escape_character(match[0]), escaped)


def _escape_character(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def markdown(text: str) -> str:
    """Escape a text so that Markdown shows it literally, even in a table cell."""
    escaped = _MARKDOWN.sub(r"\\\1", visible(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table. Headings and cells must already be escaped by `markdown`."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def beginning(text: str, characters: int) -> str:
    """Return a text, or its beginning followed by three dots if the text is longer than ``characters``."""
    shortened = shorten(text, characters, placeholder="...")
    if shortened == "...":  # no space within the limit, as in Chinese
        shortened = f"{text.strip()[:characters]}..."
    return shortened
