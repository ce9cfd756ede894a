"""Everything that another process needs to load the same encoder."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.encoders.prompting import LayerChoice, Prompting


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """How an encoder was loaded; arguments as in `load_encoder`.

    Attributes:
        model: an absolute folder, or a name.
        device: device of the model; None before it is loaded.
        prompting: prompt and layers, with names and presets resolved; empty for a saved `CausalPrompt`,
            which has its own.
        layer_choice: where the layer that is read comes from; None for a model without a prompt.
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
    layer_choice: LayerChoice | None = None
