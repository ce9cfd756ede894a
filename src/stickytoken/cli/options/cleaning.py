"""Options of cleaning."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import OUTPUT, TEXTS

if TYPE_CHECKING:
    from stickytoken.cleaning import Action, SpanKind


class LineFormat(StrEnum):
    """What is printed of cleaned lines."""

    TEXT = "text"
    JSON = "json"


LineOutput: TypeAlias = Annotated[
    LineFormat,
    typer.Option(
        "--format",
        "-f",
        help="Print the lines, or one JSON document of the removals.",
        rich_help_panel=OUTPUT,
    ),
]
Actions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="KIND=ACTION",
        help="What to do with flagged, special, run or interleaved findings: remove, replace, escape (special"
        " only), report or refuse. Repeatable. Default: remove, report for interleaved.",
        rich_help_panel=TEXTS,
    ),
]


def parsed_actions(values: list[str] | None) -> dict[SpanKind, Action]:
    """Read actions by kind.

    Raises:
        typer.BadParameter: a value is not of the form KIND=ACTION, or names no kind or action.
    """
    from stickytoken.cleaning.actions import actions_of
    from stickytoken.errors import InputError

    actions: dict[str, str] = {}
    for value in values or ():
        kind, sign, action = value.partition("=")
        if not sign:
            raise typer.BadParameter(f"{value!r} is not of the form KIND=ACTION", param_hint="--action")
        actions[kind.strip()] = action.strip()
    try:
        return {kind: action for kind, action in actions_of(actions).items() if kind in actions}
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--action") from error
