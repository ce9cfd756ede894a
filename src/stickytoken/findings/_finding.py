"""What was found, before it takes the form that a build server reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from stickytoken.hashing import digest

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Level(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a check looks for.

    Attributes:
        id: short name in lower case, such as ``sticky-token``.
        title: one sentence without a full stop, such as ``No token of the model is sticky``.
        help: what a finding means and what to do about it, in whole sentences.
        level: level of most of its findings.
    """

    id: str
    title: str
    help: str
    level: Level


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Text may be hostile: every format escapes it.

    Attributes:
        rule: id of the rule.
        level: how much it matters.
        message: one sentence for people.
        path: file in the repository, relative to its root, with slashes; None if it belongs to no file.
        line: line in the file, from 1.
        identity: what makes it the same finding in a later run, such as rule, model and token.
        properties: anything else, as JSON values.
    """

    rule: str
    level: Level
    message: str
    path: str | None = None
    line: int | None = None
    identity: tuple[str, ...] = ()
    properties: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Hash of the identity, by which later runs recognise the finding."""
        return digest([self.rule, *(self.identity or (self.message, self.path or ""))])
