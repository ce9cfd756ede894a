"""The page of all public names, generated from their docstrings by mkdocstrings."""

from __future__ import annotations

from typing import Any

import stickytoken

_INTRODUCTION = """# Python

What `from stickytoken import ...` offers, from the docstrings. [Usage](../usage.md#python) shows how the
parts are used together.
"""


def python_page() -> str:
    """Write every public name, functions first, as Markdown that mkdocstrings fills."""
    groups: dict[str, list[Any]] = {"Functions": [], "Classes": [], "Errors and warnings": []}
    for name in stickytoken.__all__:
        if name != "__version__":
            found = getattr(stickytoken, name)
            groups[_group(found)].append(found)
    parts = [_INTRODUCTION]
    for group, members in groups.items():
        parts.append(f"## {group}\n")
        parts += [f"::: {each.__module__}.{each.__qualname__}\n" for each in members]
    return "\n".join(parts)


def _group(found: Any) -> str:
    if not isinstance(found, type):
        return "Functions"
    return "Errors and warnings" if issubclass(found, BaseException) else "Classes"
