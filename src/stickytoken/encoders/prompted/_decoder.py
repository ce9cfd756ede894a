"""Find the parts of a decoder-only language model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from stickytoken.encoders.model_state import evaluating
from stickytoken.errors import InputError, ModelError

_LAYERS = ("layers", "h", "blocks")
# Recurrent layers that ignore the attention mask.
_READS_PADDING = ("recurrent_gemma",)
# Largest relative change of an earlier state by a later token in a causal model, beyond rounding.
_LOOK_AHEAD = 1e-4


@dataclass(frozen=True)
class Decoder:
    """A base decoder without a language-model head."""

    model: Any
    layers: tuple[torch.nn.Module, ...]
    name: str

    @property
    def embedding(self) -> Any:
        """The token embedding."""
        return self.model.get_input_embeddings()

    @property
    def rows(self) -> int:
        """Number of rows of the token embedding."""
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Device of the token embedding, where inputs go."""
        device: torch.device = self.embedding.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the token embedding, which is not quantised."""
        dtype: torch.dtype = self.embedding.weight.dtype
        return dtype

    @cached_property
    def takes_positions(self) -> bool:
        """Whether the model accepts position ids; models with linear biases have none."""
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def beside(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return further inputs computed from the token ids: Gemma 4 has an embedding per layer.

        Args:
            ids: token ids, shape (rows, tokens).
        """
        if not getattr(self.model.config, "hidden_size_per_layer_input", None):
            return {}
        by_layer = self.model.get_per_layer_inputs
        # Earlier releases of transformers require this argument too, and ignore it if ids are given.
        more = {"inputs_embeds": None} if "inputs_embeds" in inspect.signature(by_layer).parameters else {}
        return {"per_layer_inputs": by_layer(ids, **more)}

    def layer_number(self, layer: int) -> int:
        """Return how many layers to run for ``layer``, an index into the embedding and all layer outputs."""
        count = len(self.layers)
        number = layer + count + 1 if layer < 0 else layer
        if number == 0:
            raise InputError(
                f"layer {layer} of {self.name} is the embedding of the prompt's last token, the same for "
                f"every sentence: use 1 to {count}, or -1 to {-count}"
            )
        if not 0 < number <= count:
            raise InputError(f"{self.name} has no layer {layer}: use 1 to {count}, or -1 to {-count}")
        return number


def find_decoder(model: Any, name: str) -> Decoder:
    """Find the base decoder of a language model, and its layers."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{name} is a {type(model).__name__}, not a transformers language model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}): prompts need a decoder-only model"
        )
    found = model.get_decoder()
    layers = next((part for key in _LAYERS if (part := getattr(found, key, None)) is not None), None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise ModelError(
            f"{name} is a {config.model_type} without a list of decoder layers: prompts need a "
            f"decoder-only model"
        )
    if _is_recurrent(found):
        raise ModelError(
            f"{name} is a {config.model_type}, a recurrent model: prompts need a decoder-only model "
            "whose tokens attend to earlier ones"
        )
    decoder = Decoder(found, tuple(layers), name)
    if decoder.device.type == "meta":
        raise ModelError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    if not _is_causal(decoder):
        raise ModelError(
            f"{name} is a {config.model_type} whose tokens attend to later ones (an encoder): "
            "prompts need a decoder-only model"
        )
    return decoder


def _is_recurrent(model: Any) -> bool:
    """Check for models without attention, such as Mamba and RWKV, and those that read padding as text."""
    attends = getattr(model.config, "num_attention_heads", None) is not None
    return (
        getattr(model, "_is_stateful", False) and not attends
    ) or model.config.model_type in _READS_PADDING


def _is_causal(decoder: Decoder) -> bool:
    """Check that changing the last token leaves all earlier states as they are."""
    *shared, one, other = (place % decoder.rows for place in range(5, 11))
    ids = torch.tensor([[*shared, one], [*shared, other]], device=decoder.device)
    with evaluating(decoder.model), torch.inference_mode():
        states = decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    before = states[:, :-1].float()
    moved = (before[0] - before[1]).norm()
    allowed = (_LOOK_AHEAD + 4 * torch.finfo(states.dtype).eps) * before[0].norm()
    return not bool(moved > allowed)  # NaN from damaged weights: reported later, with the text
