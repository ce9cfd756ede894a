"""Errors that a user can mend: one line on stderr, exit status 1."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

from stickytoken.cli.output import tell
from stickytoken.errors import StickyTokenError

_Arguments = ParamSpec("_Arguments")


def reported(command: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Print a `StickyTokenError` or an interrupt as one line; anything else is a defect."""
    return _guarded(command, "interrupted")


def reported_and_continued(command: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """The same for a command that goes on where it was interrupted."""
    return _guarded(command, "interrupted: what was computed is kept, the same command continues")


def _guarded(command: Callable[_Arguments, None], interrupted: str) -> Callable[_Arguments, None]:
    @functools.wraps(command)
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except StickyTokenError as error:
            tell(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            tell(interrupted)
            raise typer.Exit(1) from None

    return guarded
