"""Arguments and options that commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.precision import Precision


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Method(StrEnum):
    """Detection methods."""

    PROFILE = "profile"
    STD = "std"


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
        help="std: file of pairs (sentence1, sentence2, similarity) in place of sampled ones.",
        show_default=False,
    ),
]
MethodName: TypeAlias = Annotated[
    Method | None,
    typer.Option(
        "--method",
        help="profile: every token with an interval. std: Chen et al. 2025. "
        "Default: profile, or std with --pairs.",
        show_default=False,
    ),
]
Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Of all sampling; std: 42 replays the published runs.")
]
InsertionMode: TypeAlias = Annotated[
    Insertion | None,
    typer.Option(
        help="text: copies join the string. ids: the model sees exactly n copies. "
        "Default: ids (profile), text (std).",
        show_default=False,
    ),
]
Confidence: TypeAlias = Annotated[
    float | None, typer.Option(help="profile: coverage of the intervals. Default: 0.9.", show_default=False)
]
VocabularyShare: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="profile: weight of vocabulary entries among the anchors, the rest is sentences. Default: 0.75.",
        show_default=False,
    ),
]
ScreenPrecision: TypeAlias = Annotated[
    Precision | None,
    typer.Option(
        help="profile: compute the rounds before the last in this, faster and less exactly. "
        "CPU: int8, bfloat16. GPU: tf32, bfloat16, float16. Default: the model's own.",
        show_default=False,
    ),
]
Copies: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="std: probes hold 1 to this many copies. Default: 8.", show_default=False),
]
SentenceCount: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--sentence-count",
        min=2,
        help="std: sentences sampled from the corpus. Default: 1000.",
        show_default=False,
    ),
]
PairCount: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--pair-count",
        min=1,
        help="std: pairs sampled from them, evenly over similarity. Default: 1000.",
        show_default=False,
    ),
]
ValidationPairs: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="std: pairs that validate a token. Default: 250.", show_default=False),
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
Budget: TypeAlias = Annotated[
    float | None,
    typer.Option(help="profile: texts per available token, on average. Default: 6.", show_default=False),
]
FalseDiscoveryRate: TypeAlias = Annotated[
    float | None,
    typer.Option(help="profile: false discovery rate of the verdicts. Default: 0.05.", show_default=False),
]
SmallestEffect: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="profile: smallest lift that matters, in standard deviations of the model's similarities. "
        "Default: 0.5.",
        show_default=False,
    ),
]
Adaptive: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        help="profile: spend more on the upper tail; --no-adaptive spends alike. Default: adaptive.",
        show_default=False,
    ),
]
ScoringPairs: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="std: pairs that score a token. Default: 5.", show_default=False)
]
CandidateShare: TypeAlias = Annotated[
    float | None,
    typer.Option(help="std: share of the tokens that is validated. Default: 0.02.", show_default=False),
]
OutlierRange: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, help="std: sticky above Q3 + this x IQR. Default: 0.7.", show_default=False),
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
