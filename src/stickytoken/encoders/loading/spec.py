"""Everything that another process needs to load the same encoder."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.encoders.endpoint.options import EndpointOptions
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
        vocabulary: tokenizer of a model behind an endpoint.
        candidates: file of strings in its place.
        endpoint: options of the endpoint; None for a model with weights.
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
    vocabulary: str | None = None
    candidates: str | None = None
    endpoint: EndpointOptions | None = None
