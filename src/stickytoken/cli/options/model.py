"""The model, where it computes, and what it reads around a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import computation_option, language_option, model_option
from stickytoken.errors import InputError

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder, or name: looked up in the hub cache, among packaged models, then on the hub."
    ),
]
RunsModel: TypeAlias = Annotated[
    str | None,
    model_option("--model", help="Model of the run, if it has moved. Default: the model that the run names."),
]
Revision: TypeAlias = Annotated[str | None, model_option(help="Branch, tag or commit on the hub.")]
TrustRemoteCode: TypeAlias = Annotated[
    bool, model_option("--trust-remote-code", help="Run Python code from the model's repository.")
]
Start: TypeAlias = Annotated[
    int | None,
    language_option(
        help="First layer that token prepending overwrites, counted from 0. Default: the prompt's preset."
    ),
]
ContrastSwitch: TypeAlias = Annotated[
    bool,
    language_option(
        "--contrast",
        help="With a prompt: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).",
    ),
]
ContrastLayer: TypeAlias = Annotated[
    int | None,
    language_option(
        help="Layer whose attention contrast changes, counted from 0. Default: the prompt's preset."
    ),
]
ContrastStrength: TypeAlias = Annotated[
    float | None,
    language_option(help="Factor of what contrast leaves, from 0. Default: the prompt's preset."),
]
ContrastRule: TypeAlias = Annotated[
    str | None,
    language_option(
        help="What contrast puts in its place: scaled, norm, scaled_norm or sub_head_norm. Default: scaled."
    ),
]


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Where a model comes from and where it computes, for commands that need the model itself."""

    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    device: Annotated[
        str | None, computation_option(help="cpu, cuda, cuda:1, mps. Default: the best one available.")
    ] = None
    dtype: Annotated[
        str | None,
        computation_option(
            help="Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's, else float32."
        ),
    ] = None
    token_budget: Annotated[
        int | None, computation_option(min=1, help="Tokens in a batch. Default: chosen by device.")
    ] = None
    packed_layers: Annotated[
        bool | None,
        computation_option(
            "--packed-layers/--no-packed-layers",
            help="Pack the weights of linear layers on a CPU. Default: if that is faster on this machine, as "
            "measured once for each model.",
        ),
    ] = None

    def name_of(self, model: str) -> str:
        """Return the name of the model: the argument.

        Raises:
            InputError: it names a model behind an endpoint.
        """
        from stickytoken.encoders.endpoint.options import names_endpoint

        if names_endpoint(model):
            raise InputError(
                f"this command needs the model itself, and {model} is behind an endpoint, which gives only "
                "vectors of texts: pass a model that is on this machine"
            )
        return model


@dataclass(frozen=True, slots=True)
class PromptingOptions:
    """What a model reads around a text."""

    prompt: Annotated[
        str | None,
        language_option(
            help="Text in front of every input. Default: the model's own. For a plain language model: "
            "prompteol, cot, ke, ck, metaeol, echo, or a text with {sentence}."
        ),
    ] = None
    prompt_name: Annotated[str | None, language_option(help="Name of one of the model's own prompts.")] = None
    token_prepending: Annotated[
        bool,
        language_option(
            "--token-prepending",
            help="With a prompt: let every token of the sentence see the whole sentence (Fu et al., ACL "
            "2025).",
        ),
    ] = False
    start: Start = None
    exit: Annotated[
        int | None,
        language_option(help="First layer after --start that it leaves alone. Default: the prompt's preset."),
    ] = None
    layer: Annotated[
        int | None,
        language_option(
            help="Layer to read the vector from, counted from 1; -1 is the last. Default: that of a "
            "published preset, else the last one for a plain prompt."
        ),
    ] = None
    contrast: ContrastSwitch = False
    contrast_layer: ContrastLayer = None
    contrast_strength: ContrastStrength = None
    contrast_rule: ContrastRule = None
