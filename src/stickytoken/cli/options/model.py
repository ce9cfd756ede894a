"""The model, where it computes, and what it reads around a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import COMPUTATION, LANGUAGE_MODELS, MODEL

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder, or name: looked up in the hub cache, then as the packaged model, then on the hub."
    ),
]
RunsModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model of the run, if it has moved. Default: the one that the run names.",
        rich_help_panel=MODEL,
    ),
]
Revision: TypeAlias = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=MODEL)
]
TrustRemoteCode: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run Python code from the model's repository.", rich_help_panel=MODEL
    ),
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1, mps. Default: the best one available.", rich_help_panel=COMPUTATION
    ),
]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's, else float32.",
        rich_help_panel=COMPUTATION,
    ),
]
TokenBudget: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a batch. Default: chosen by device.", rich_help_panel=COMPUTATION),
]
PackedLayers: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--packed-layers/--no-packed-layers",
        help="Pack the weights of linear layers on a CPU. Default: yes, unless STICKYTOKEN_PACKED_LAYERS=0.",
        rich_help_panel=COMPUTATION,
    ),
]
Prompt: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Text in front of every input. Default: the model's own. For a plain language model: "
        "prompteol, cot, ke, metaeol, echo, or a text with {sentence}.",
        rich_help_panel=LANGUAGE_MODELS,
    ),
]
PromptName: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of one of the model's own prompts.", rich_help_panel=LANGUAGE_MODELS)
]
TokenPrepending: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--token-prepending",
        help="With a prompt: let every token of the sentence see the whole sentence (Fu et al., ACL 2025).",
        rich_help_panel=LANGUAGE_MODELS,
    ),
]
Start: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="First layer that token prepending overwrites, counted from 0. Default: the prompt's preset.",
        rich_help_panel=LANGUAGE_MODELS,
    ),
]
Exit: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="First layer after --start that it leaves alone. Default: the prompt's preset.",
        rich_help_panel=LANGUAGE_MODELS,
    ),
]
Layer: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Layer to read the vector from, counted from 1; -1 is the last. Default: that of a published "
        "preset, else the last one for a plain prompt.",
        rich_help_panel=LANGUAGE_MODELS,
    ),
]


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Where a model comes from and where it computes."""

    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    device: Device = None
    dtype: Dtype = None
    token_budget: TokenBudget = None
    packed_layers: PackedLayers = None


@dataclass(frozen=True, slots=True)
class PromptingOptions:
    """What a model reads around a text."""

    prompt: Prompt = None
    prompt_name: PromptName = None
    token_prepending: TokenPrepending = False
    start: Start = None
    exit: Exit = None
    layer: Layer = None
