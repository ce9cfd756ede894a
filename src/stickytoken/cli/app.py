"""The stickytoken command and its subcommands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stickytoken.cli import console
from stickytoken.cli._command import PanelledCommand
from stickytoken.cli.commands.documents import clean, scan
from stickytoken.cli.commands.language_models import embed, evaluate, tune
from stickytoken.cli.commands.measuring import detect, judge, probe
from stickytoken.cli.commands.runs import card, compare, published, report, show, tokens
from stickytoken.cli.commands.shipping import check, demo, repair
from stickytoken.cli.commands.understanding import explain, impact, why
from stickytoken.errors import KEPT_NOTE, StickyTokenError
from stickytoken.version import __version__

FAILED = 1
WRONG_USAGE = 2
_RESUMING = ("check", "detect", "explain", "impact", "scan")
_AFTER_INTERRUPT = dict.fromkeys(_RESUMING, "run the same command again to continue") | {
    "repair": "nothing was written to the output folder",
    "demo": "the web app has stopped",
}


class CommandGroup(TyperGroup):
    """Commands that fail with one line on stderr; only a defect ends with a traceback."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **options: Any
    ) -> Any:
        try:
            status = super().main(args, standalone_mode=False, **options) or 0
        except typer.TyperException as error:
            context: typer.Context | None = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "stickytoken"
            message = error.format_message().replace("Value error, ", "").rstrip(".")
            console.print_error(f"error: {message} (see {command} --help)")
            status = WRONG_USAGE
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.TyperException):
            raise
        except BaseException as error:
            status = FAILED
            if isinstance(error, KeyboardInterrupt) or console.was_interrupted():
                console.ignore_interrupts()
                said = [note for note in getattr(error, "__notes__", []) if note.startswith(KEPT_NOTE)]
                if ctx.invoked_subcommand in _AFTER_INTERRUPT:
                    said.append(_AFTER_INTERRUPT[ctx.invoked_subcommand])
                console.print_error(f"interrupted: {'; '.join(said)}" if said else "interrupted")
                status = console.INTERRUPTED
            elif isinstance(error, StickyTokenError):
                console.print_error(f"error: {error}")
            elif isinstance(error, BrokenPipeError):
                console.silence_stdout()
                status = console.CLOSED_PIPE
            elif isinstance(error, OSError) and console.is_full(error):
                console.silence_stdout()
                console.print_error(f"error: the output could not be written: {error.strerror}")
            else:
                raise
            raise typer.Exit(status) from error


_FINDING = (tokens, detect, judge, show, probe, report, compare, published, card)
_ACTING = (explain, why, impact, repair, scan, clean, check, demo)
_PANELS = {
    "Commands": (*_FINDING, *_ACTING),
    "Sentence embeddings from language models": (embed, evaluate, tune),
}

app = typer.Typer(
    name="stickytoken",
    cls=CommandGroup,
    help="Find, prove, measure and repair sticky tokens in text embedding models.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(cls=PanelledCommand, rich_help_panel=panel)(command)


def _print_version(asked: bool) -> None:
    if asked:
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
