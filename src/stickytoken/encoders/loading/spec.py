"""All that another process needs to load the same encoder."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.encoders.prompting import Prompting


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What an encoder was loaded from; arguments as of `load_encoder`.

    Attributes:
        model: an absolute folder, or a name.
        device: where it was loaded; None before it is.
        prompting: with the name of a prompt and presets of layers resolved; without a prompt for a saved
            `CausalPrompt`, which has its own.
    """

    model: str
    device: str | None
    prompting: Prompting
    dtype: str
    revision: str | None
    trust_remote_code: bool
    max_length: int | None
    token_budget: int | None
    packed_layers: bool | None = None
