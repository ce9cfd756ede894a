"""What a message must name, whatever its words and their order."""

import re


class Naming(str):
    """A pattern for messages; a case of a test is called by the values, not by the pattern."""

    values: tuple[object, ...]


def naming(*values: object) -> Naming:
    """Return a pattern for a line that names every value, such as a path, a column or a number.

    A value is found as a whole: 3 is neither in 30 nor in 0.3, and `seed` is not in `seeds`.
    """
    pattern = Naming("".join(f"(?=.*{_as_a_whole(str(value))})" for value in values))
    pattern.values = values
    return pattern


def says(text: str, *values: object) -> bool:
    """Return whether a line of the text names every value."""
    return re.search(naming(*values), text) is not None


def _as_a_whole(value: str) -> str:
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", value) else ""
    after = r"(?!\w)(?!\.\d)" if re.search(r"\w\Z", value) else ""
    return f"{before}{re.escape(value)}{after}"
