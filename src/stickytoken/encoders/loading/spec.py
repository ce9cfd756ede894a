"""All that another process needs to load the same encoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What an encoder was loaded from; arguments as of `load_encoder`.

    Attributes:
        model: an absolute folder, or a name.
        device: where it was loaded; None before it is.
        prompt: the prompt itself; a prompt's name is resolved. None for a saved `CausalPrompt`, which has its
            own.
        token_prepending: with a language model's prompt; start, exit and layer are resolved too.
    """

    model: str
    device: str | None
    prompt: str | None
    dtype: str
    revision: str | None
    trust_remote_code: bool
    max_length: int | None
    token_budget: int | None
    packed_layers: bool | None = None
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
