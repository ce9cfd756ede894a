"""The stickytoken command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from stickytoken.cli._group import WRONG_USAGE, CommandGroup
from stickytoken.cli._help_page import PanelledCommand
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
from stickytoken.version import __version__

_PANELS = {
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
