"""What is printed and written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stickytoken.cli.output.console import Verbosity

MODEL = "Model"
TEXTS = "Tokens and texts"
ENDPOINT = "Models behind an endpoint"
METHOD = "Method"
COMPUTATION = "Computation"
LANGUAGE_MODELS = "Language models"
OUTPUT = "Output"

model_option = partial(typer.Option, rich_help_panel=MODEL)
texts_option = partial(typer.Option, rich_help_panel=TEXTS)
method_option = partial(typer.Option, rich_help_panel=METHOD)
endpoint_option = partial(typer.Option, rich_help_panel=ENDPOINT)
computation_option = partial(typer.Option, rich_help_panel=COMPUTATION)
language_option = partial(typer.Option, rich_help_panel=LANGUAGE_MODELS)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)


class Format(StrEnum):
    """Formats of printed results."""

    TABLE = "table"
    JSON = "json"


class TableFormat(StrEnum):
    """Formats of printed results that fit a spreadsheet."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


OutputFormat: TypeAlias = Annotated[
    Format, output_option("--format", "-f", help="Print tables, or one JSON document.")
]
RunFolderPath: TypeAlias = Annotated[
    Path | None, output_option(help="Run folder. Default: runs/<model>-<method>-<identity>.")
]
WriteReport: TypeAlias = Annotated[
    bool,
    output_option(
        "--report/--no-report",
        help="Write report.html into the run folder, with curves, pairs and a map.",
    ),
]


@dataclass(frozen=True, slots=True)
class VerbosityOptions:
    """How much a command prints besides its results."""

    quiet: Annotated[bool, output_option("--quiet", "-q", help="Print results and errors only.")] = False
    verbose: Annotated[
        bool,
        output_option(
            "--verbose",
            "-v",
            help="Also print where the model was found, how it computes, and the logs of libraries.",
        ),
    ] = False

    @property
    def level(self) -> Verbosity:
        """The verbosity that the options ask for."""
        if self.quiet and self.verbose:
            raise typer.BadParameter("use one of --quiet and --verbose", param_hint="--quiet")
        if self.quiet:
            return Verbosity.QUIET
        return Verbosity.VERBOSE if self.verbose else Verbosity.NORMAL
