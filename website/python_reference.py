"""The page of all public names, generated from their docstrings by mkdocstrings."""

from __future__ import annotations

from typing import Any

import stickytoken

_INTRODUCTION = """# Python

The names that `from stickytoken import ...` offers, with their docstrings.
[Usage](../usage.md#how-do-i-use-it-in-python) shows how they work together.
"""


def python_page() -> str:
    """Return a Markdown page of every public name, functions first; mkdocstrings adds the docstrings."""
    groups: dict[str, list[Any]] = {"Functions": [], "Classes": [], "Errors and warnings": []}
    for name in stickytoken.__all__:
        if name != "__version__":
            member = getattr(stickytoken, name)
            groups[_group(member)].append(member)
    blocks = [_INTRODUCTION]
    for group, members in groups.items():
        blocks.append(f"## {group}\n")
        blocks += [f"::: {member.__module__}.{member.__qualname__}\n" for member in members]
    return "\n".join(blocks)


def _group(member: Any) -> str:
    """Return the heading under which a public name stands."""
    if not isinstance(member, type):
        return "Functions"
    return "Errors and warnings" if issubclass(member, BaseException) else "Classes"
