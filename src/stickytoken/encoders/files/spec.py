"""Say which model to load, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stickytoken.encoders.roles import Role
from stickytoken.machine import Precision
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.loading import LoadingSettings
from stickytoken.settings.prompting import LayerChoice, Prompting


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(LoadingSettings):
    """Which model to load, and how. The spec of an encoder says how to load the same encoder again.

    In the spec of an encoder, folders and files are absolute, and names of prompts and presets are resolved.

    Attributes:
        model: Folder or name of a model.
        prompting: Prompt, if the user named one, and layers; empty for a saved `CausalPrompt`, whose own
            settings apply.
        layer_choice: How the layer was chosen; None for a model without a prompt.
        tokenizer: The tokenizer, if the model has none that can be read: an object, a name or a folder.
        candidates: Strings to examine if the tokenizer is unpublished, or a file of them.
        endpoint: Options for requests to the server, for a model behind an endpoint.
        role: The role of the texts.
    """

    model: str
    prompting: Prompting = field(default_factory=Prompting)
    layer_choice: LayerChoice | None = None
    tokenizer: Any = None
    candidates: Any = None
    endpoint: EndpointOptions | None = None
    role: Role | None = None

    @property
    def precision(self) -> Precision | None:
        """Precision of the arithmetic; None if it is that of the weights."""
        return Precision.TF32 if self.dtype == Precision.TF32 else None

    @property
    def weight_dtype(self) -> str:
        """Name of the data type of the weights."""
        if self.dtype is None or self.dtype == Precision.TF32:
            return "float32"
        return self.dtype
