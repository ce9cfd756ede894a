"""Cut runs of a repeated word to two copies before a text is tokenized."""

from __future__ import annotations

from typing import Any

from stickytoken.repairs.tokenizer_edit._pipeline import normaliser_steps

# A word that is followed by two more copies of itself. The replacement of a normaliser cannot refer to
# groups, so words are deleted rather than runs rewritten.
_REPEATED = r"\b(\w+)\s+(?=\1\s+\1\b)"
_STEP = {"type": "Replace", "pattern": {"Regex": _REPEATED}, "content": ""}
# Steps after which words are no longer separated by spaces.
_JOINING = {"Prepend", "ByteLevel", "Replace"}


def with_collapsed_runs(document: dict[str, Any]) -> dict[str, Any]:
    """Add the step to the normaliser: after lowercasing and the like, before spaces are replaced."""
    steps = normaliser_steps(document)
    if _STEP in steps:
        return document
    place = next((place for place, step in enumerate(steps) if step["type"] in _JOINING), len(steps))
    steps = [*steps[:place], _STEP, *steps[place:]]
    return document | {"normalizer": {"type": "Sequence", "normalizers": steps}}
