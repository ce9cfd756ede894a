"""The stickytoken command and its subcommands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from stickytoken.cli.commands.card import card
from stickytoken.cli.commands.check import check
from stickytoken.cli.commands.clean import clean
from stickytoken.cli.commands.compare import compare
from stickytoken.cli.commands.demo import demo
from stickytoken.cli.commands.detect import detect
from stickytoken.cli.commands.embed import embed
from stickytoken.cli.commands.evaluate import evaluate
from stickytoken.cli.commands.explain import explain
from stickytoken.cli.commands.impact import impact
from stickytoken.cli.commands.judge import judge
from stickytoken.cli.commands.probe import probe
from stickytoken.cli.commands.published import published
from stickytoken.cli.commands.repair import repair
from stickytoken.cli.commands.report import report
from stickytoken.cli.commands.scan import scan
from stickytoken.cli.commands.show import show
from stickytoken.cli.commands.tokens import tokens
from stickytoken.cli.commands.tune import tune
from stickytoken.cli.commands.why import why
from stickytoken.cli.options.output import (
    COMPUTATION,
    ENDPOINT,
    LANGUAGE_MODELS,
    METHOD,
    MODEL,
    OUTPUT,
    TEXTS,
)
from stickytoken.cli.output.console import (
    CLOSED_PIPE,
    INTERRUPTED,
    ignore_interrupts,
    is_full,
    print_error,
    silence_stdout,
    was_interrupted,
)
from stickytoken.errors import KEPT_NOTE, StickyTokenError
from stickytoken.version import __version__

_PANELS = (MODEL, TEXTS, METHOD, COMPUTATION, ENDPOINT, LANGUAGE_MODELS, OUTPUT)


class PanelledCommand(TyperCommand):
    """A command with its options in panels, in the order shared by all commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for param in self.params:
            if isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = _value(param)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """Return --help, in the last panel."""
        option: TyperOption | None = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT
            option.metavar = ""
        return option

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments, then options by panel."""
        return sorted(super().get_params(ctx), key=_rank)


def _rank(param: Any) -> int:
    panel = getattr(param, "rich_help_panel", None)
    return 1 + _PANELS.index(panel) if isinstance(param, TyperOption) and panel in _PANELS else 0


def _value(option: TyperOption) -> str | None:
    """Return how a value is shown: nothing for a flag, plain names for ranges and lists."""
    if option.is_flag:
        return ""
    kind = option.type_descriptor
    if kind.is_ranged:
        return f"<{kind.ranged_type_name}>"
    return "<str>" if kind.is_list and not kind.is_path else None


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


_APP_PANELS = {
    "Commands": (
        tokens,
        detect,
        judge,
        show,
        probe,
        report,
        compare,
        published,
        card,
        explain,
        why,
        impact,
        repair,
        scan,
        clean,
        check,
        demo,
    ),
    "Sentence embeddings from language models": (embed, evaluate, tune),
}

app = typer.Typer(
    name="stickytoken",
    cls=CommandGroup,
    help="Find, prove, measure and repair sticky tokens in text embedding models.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for panel, commands in _APP_PANELS.items():
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
