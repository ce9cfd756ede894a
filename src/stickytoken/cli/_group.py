"""The group of all commands, which handles every way in which a command ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from stickytoken.cli._interrupts import INTERRUPTED, ignore_interrupts, was_interrupted
from stickytoken.cli._pipes import CLOSED_PIPE, is_full, silence_stdout
from stickytoken.cli.output.console import print_error
from stickytoken.errors import KEPT_NOTE, StickyTokenError

FAILED = 1
WRONG_USAGE = 2

_AFTER_INTERRUPT = {
    **dict.fromkeys(
        ("check", "detect", "explain", "impact", "scan"), "run the same command again to continue"
    ),
    "repair": "nothing was written to the output folder",
    "demo": "the web app has stopped",
}


class CommandGroup(TyperGroup):
    """Commands that fail with one line on stderr; only a defect ends with a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the arguments name; report wrong usage in one line."""
        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra) or 0
        except typer.TyperException as error:
            context: typer.Context | None = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "stickytoken"
            message = error.format_message().replace("Value error, ", "").rstrip(".")
            print_error(f"error: {message} (see {command} --help)")
            status = WRONG_USAGE
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn user errors, an interrupt and a closed pipe into exit statuses."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except BaseException as error:
            status = _status(error, ctx.invoked_subcommand)
            if status is None:
                raise
            raise typer.Exit(status) from error


def _status(error: BaseException, command: str | None) -> int | None:
    """Print the line for an error and return the exit status; None where the error is a defect."""
    if isinstance(error, KeyboardInterrupt) or was_interrupted():
        ignore_interrupts()
        said = [note for note in getattr(error, "__notes__", []) if note.startswith(KEPT_NOTE)]
        if command in _AFTER_INTERRUPT:
            said.append(_AFTER_INTERRUPT[command])
        print_error(f"interrupted: {'; '.join(said)}" if said else "interrupted")
        return INTERRUPTED
    if isinstance(error, StickyTokenError):
        print_error(f"error: {error}")
        return FAILED
    if isinstance(error, BrokenPipeError):
        silence_stdout()
        return CLOSED_PIPE
    if isinstance(error, OSError) and is_full(error):
        silence_stdout()
        print_error(f"error: the output could not be written: {error.strerror}")
        return FAILED
    return None
