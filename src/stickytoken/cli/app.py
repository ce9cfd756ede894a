"""The stickytoken command and its subcommands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stickytoken.cli import console
from stickytoken.cli._command import PanelledCommand
from stickytoken.cli.commands.audit import audit
from stickytoken.cli.commands.documents import clean, scan
from stickytoken.cli.commands.language_models import embed, evaluate, tune
from stickytoken.cli.commands.measuring import detect, probe
from stickytoken.cli.commands.runs import card, published, report, show, tokens
from stickytoken.cli.commands.shipping import REPAIRED_NOTE, check, demo, repair
from stickytoken.cli.commands.understanding import explain, why
from stickytoken.errors import KEPT_NOTE, StickyTokenError
from stickytoken.version import __version__

# Exit statuses of all commands.
FAILED = 1
WRONG_USAGE = 2
# What is printed after Ctrl-C, keyed by command.
_CONTINUE = "run the same command again to continue"
_AFTER_INTERRUPT = {
    "audit": _CONTINUE,
    "check": _CONTINUE,
    "detect": _CONTINUE,
    "explain": _CONTINUE,
    "scan": _CONTINUE,
    "repair": "nothing was written to the output folder",
    "demo": "the web app has stopped",
}


class CommandGroup(TyperGroup):
    """The group of all commands. An error is printed as one line on stderr. Only a bug causes a traceback."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **options: Any
    ) -> Any:
        """Run a command, and print a usage error as one line.

        Returns:
            The exit status. In standalone mode, the method exits with the status instead of returning it.
        """
        try:
            status = super().main(args, standalone_mode=False, **options) or 0
        except typer.TyperException as error:
            context: typer.Context | None = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "stickytoken"
            # Typer converts values with pydantic, which begins some messages in this way.
            message = error.format_message().replace("Value error, ", "").rstrip(".")
            console.print_error(f"error: {message} (see {command} --help)")
            status = WRONG_USAGE
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if the command fails, print one line on stderr and exit with a status."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except BaseException as error:  # also KeyboardInterrupt
            status = _report_error(error, ctx.invoked_subcommand)
            if status is None:  # a bug
                raise
            raise typer.Exit(status) from error


def _report_error(error: BaseException, command: str | None) -> int | None:
    """Print the error that ended a command, and return the exit status.

    Returns:
        The exit status. If the error is a bug, nothing is printed, and the result is None.
    """
    # Libraries add notes, too, for whoever reads a traceback.
    our_beginnings = (KEPT_NOTE, REPAIRED_NOTE)
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith(our_beginnings)]
    if isinstance(error, KeyboardInterrupt) or console.was_interrupted():
        console.ignore_interrupts()  # let Python clean up undisturbed
        if any(note.startswith(REPAIRED_NOTE) for note in notes):
            notes.append(_CONTINUE)
        elif command in _AFTER_INTERRUPT:
            notes.append(_AFTER_INTERRUPT[command])
        console.print_error(f"interrupted: {'; '.join(notes)}" if notes else "interrupted")
        return console.INTERRUPTED
    if isinstance(error, StickyTokenError):
        console.print_error("; ".join([f"error: {error}", *notes]))
        return FAILED
    if isinstance(error, BrokenPipeError):
        console.silence_stdout()
        return console.CLOSED_PIPE
    if isinstance(error, OSError) and console.means_full_disk(error):
        console.silence_stdout()
        console.print_error(f"error: the output could not be written: {error.strerror}")
        return FAILED
    return None


# The commands in each panel of --help, in display order.
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Find sticky tokens": (detect, audit, show, probe),
    "Fix a model or documents": (repair, scan, clean, check),
    "Understand and report": (explain, why, report, published, card, demo),
    "Language models": (embed, evaluate, tune),
    "Tokenizers": (tokens,),
}

app = typer.Typer(
    name="stickytoken",
    cls=CommandGroup,
    help="Find, explain, measure and repair sticky tokens in text embedding models.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(cls=PanelledCommand, rich_help_panel=panel)(command)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"stickytoken {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit(WRONG_USAGE)
