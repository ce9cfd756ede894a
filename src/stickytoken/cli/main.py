"""The stickytoken command."""

from __future__ import annotations

from typing import Annotated

import typer

from stickytoken.cli.demo import demo
from stickytoken.cli.detect import detect
from stickytoken.cli.embed import embed
from stickytoken.cli.evaluate import evaluate
from stickytoken.cli.explain import explain
from stickytoken.cli.impact import impact
from stickytoken.cli.probe import probe
from stickytoken.cli.quiet import quiet_warnings
from stickytoken.cli.report import report
from stickytoken.cli.show import show
from stickytoken.cli.tokens import tokens
from stickytoken.cli.tune import tune

app = typer.Typer(
    name="stickytoken",
    help="Find, prove and measure sticky tokens in text embedding models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for command in (tokens, detect, probe, show, report, explain, impact, demo, embed, evaluate, tune):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"stickytoken {version('stickytoken')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line, without the chatter of the libraries underneath."""
    quiet_warnings()
    app()
