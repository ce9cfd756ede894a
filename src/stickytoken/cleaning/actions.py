"""What a cleaner does with what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from stickytoken.cleaning.spans import SpanKind
from stickytoken.errors import InputError
from stickytoken.validation import shown

Kind = TypeVar("Kind", bound=StrEnum)


class Action(StrEnum):
    """What to do with a finding."""

    REMOVE = "remove"
    """Take it out; of a run, keep the first copy."""
    REPLACE = "replace"
    """Replace it with the replacement; in a run, replace what follows the first copy."""
    ESCAPE = "escape"
    """Put a space after its first character, so that no tokenizer reads it. Special tokens only."""
    REPORT = "report"
    """Leave it and report it."""
    REFUSE = "refuse"
    """Raise an error instead of returning a text."""


# Copies of a word without a flag that are no run are a guess, and no text is taken out on a guess.
DEFAULT_ACTIONS: Mapping[SpanKind, Action] = MappingProxyType(
    {
        SpanKind.FLAGGED: Action.REMOVE,
        SpanKind.SPECIAL: Action.REMOVE,
        SpanKind.RUN: Action.REMOVE,
        SpanKind.INTERLEAVED: Action.REPORT,
    }
)


def actions_of(values: Mapping[Any, str]) -> dict[SpanKind, Action]:
    """Return an action for each kind; the default for kinds that are left out.

    Raises:
        InputError: A kind or an action is unknown, or other findings than special tokens are to be escaped.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"actions is {shown(values)}: pass a mapping such as {{'special': 'escape'}}")
    actions = dict(DEFAULT_ACTIONS)
    for key, value in values.items():
        kind, action = _member(SpanKind, "kind of finding", key), _member(Action, "action", value)
        if action is Action.ESCAPE and kind is not SpanKind.SPECIAL:
            raise InputError(f"the action for {kind.value} is escape: only special tokens can be escaped")
        actions[kind] = action
    return actions


def _member(kinds: type[Kind], what: str, value: Any) -> Kind:
    try:
        return kinds(value)
    except ValueError:
        names = ", ".join(kind.value for kind in kinds)
        raise InputError(f"{shown(value)} is no {what}: use one of {names}") from None
