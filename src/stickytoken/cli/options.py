"""Arguments and options that commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stickytoken.errors import InputError


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Engine(StrEnum):
    """Where shards are computed."""

    LOCAL = "local"
    RAY = "ray"


Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder or name; a name is sought in the hub cache, the packaged model, the hub.",
        show_default=False,
    ),
]
OutputFormat: TypeAlias = Annotated[
    Format, typer.Option("--format", "-f", help="json: one document on stdout, progress on stderr.")
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: the best there is.", show_default=False)
]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Precision: float32, float16, bfloat16; tf32 on CUDA. Default: float32, or that of the run.",
        show_default=False,
    ),
]
RunsModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model", help="Where the run's model lies now. Default: as the run names it.", show_default=False
    ),
]
Prompt: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Text put in front of every input. Default: the model's own. For a plain language model: "
        "prompteol, cot, ke, metaeol, echo, or a text with {sentence}.",
        show_default=False,
    ),
]
PromptName: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of one of the model's own prompts.", show_default=False)
]
TokenPrepending: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--token-prepending",
        help="With a language model's prompt: show the sentence its own end (Fu et al., ACL 2025).",
    ),
]
Start: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="First layer that token prepending overwrites, from 0. Default: preset.", show_default=False
    ),
]
Exit: TypeAlias = Annotated[
    int | None,
    typer.Option(help="First later layer that it leaves as it is. Default: preset.", show_default=False),
]
Layer: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="With a language model's prompt: layer to read, from 1; -1 is the last. Default: preset.",
        show_default=False,
    ),
]
Revision: TypeAlias = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub.", show_default=False)
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let the repository's own Python code run.")
]
TokenBudget: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a batch. Default: by device.", show_default=False)
]
SentenceSource: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sentences",
        help="txt, csv, tsv, jsonl, parquet file; hub:REPOSITORY[@SPLIT]; paper. Default: bundled.",
        show_default=False,
    ),
]
Column: TypeAlias = Annotated[
    str | None, typer.Option(help="Column of --sentences that holds them.", show_default=False)
]
PairsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--pairs",
        help="File of pairs (sentence1, sentence2, similarity) to use in place of sampled ones.",
        rich_help_panel="Method",
        show_default=False,
    ),
]
TokensFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Look only at these tokens: txt with a token a line, or a table with token_id or token.",
        show_default=False,
    ),
]
Sample: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Look at a random sample of this many tokens.", show_default=False),
]
RunFolderPath: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Run folder. Default: runs/<model>-<method>-<identity>.", show_default=False),
]
EngineName: TypeAlias = Annotated[
    Engine,
    typer.Option("--engine", help="local: this process. ray: workers on a cluster, or on all GPUs here."),
]
RayAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="ray: host:port of the head node, or auto. Default: RAY_ADDRESS, else a Ray on this machine.",
        show_default=False,
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, help="ray: how many. Default: one a GPU, or one for every four cores.", show_default=False
    ),
]
WriteReport: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--report/--no-report",
        help="Write report.html into the run folder, and keep the curves, pairs and map that it shows.",
    ),
]


def token_id(token: str) -> int:
    """An argument as a token id.

    Raises:
        InputError: it is no number.
    """
    try:
        return int(token)
    except ValueError:
        raise InputError(f"{token!r} is no token id: leave --ids out to name tokens by text") from None
