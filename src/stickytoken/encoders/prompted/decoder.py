"""The parts of a decoder-only language model, found on the model itself."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from stickytoken.encoders.model_state import evaluating
from stickytoken.errors import InputError, ModelError

_LAYERS = ("layers", "h", "blocks")
# Their recurrent layers take no mask.
_READS_PADDING = ("recurrent_gemma",)
# Share of a state's length by which a later token may move an earlier one in a causal model, beyond rounding.
_LOOK_AHEAD = 1e-4


@dataclass(frozen=True)
class Decoder:
    """A base decoder, without a language-model head.

    Attributes:
        model: what is called.
        layers: its layers, in order.
        name: how messages call it.
    """

    model: Any
    layers: tuple[torch.nn.Module, ...]
    name: str

    @property
    def embedding(self) -> Any:
        """The embedding of tokens."""
        return self.model.get_input_embeddings()

    @property
    def rows(self) -> int:
        """Number of tokens that it embeds."""
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        device: torch.device = self.embedding.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the embedding, which quantised models keep."""
        dtype: torch.dtype = self.embedding.weight.dtype
        return dtype

    @cached_property
    def takes_positions(self) -> bool:
        """Whether positions can be passed; models with linear biases have none."""
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def beside(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a model reads of token ids beside their embedding: Gemma 4 has another one in every layer.

        Args:
            ids: that it embeds, shape (rows, tokens).
        """
        if not getattr(self.model.config, "hidden_size_per_layer_input", None):
            return {}
        by_layer = self.model.get_per_layer_inputs
        # Earlier releases of transformers ask for the embedded inputs as well, and ignore them next to ids.
        more = {"inputs_embeds": None} if "inputs_embeds" in inspect.signature(by_layer).parameters else {}
        return {"per_layer_inputs": by_layer(ids, **more)}

    def layer_number(self, layer: int) -> int:
        """The number of layers to run for ``layer``, an index into the states from embedding to last layer.

        Raises:
            InputError: there is no such layer, or it is the embedding.
        """
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
    """Find the base decoder of a language model and its layers.

    Raises:
        ModelError: an encoder, an encoder-decoder, a recurrent model, or a model whose tokens see those
            behind them.
    """
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
            "whose tokens attend to those before them"
        )
    decoder = Decoder(found, tuple(layers), name)
    if decoder.device.type == "meta":
        raise ModelError(f"{name} is on meta, which holds shapes and no numbers: load it onto a real device")
    if not _is_causal(decoder):
        raise ModelError(
            f"{name} is a {config.model_type} whose tokens see those behind them (an encoder): "
            "prompts need a decoder-only model"
        )
    return decoder


def _is_recurrent(model: Any) -> bool:
    """Whether nothing attends to a token, as in Mamba and RWKV, or padding is read like text."""
    attends = getattr(model.config, "num_attention_heads", None) is not None
    return (
        getattr(model, "_is_stateful", False) and not attends
    ) or model.config.model_type in _READS_PADDING


def _is_causal(decoder: Decoder) -> bool:
    """Whether the first states stay as they are when the last token is another one."""
    *shared, one, other = (place % decoder.rows for place in range(5, 11))
    ids = torch.tensor([[*shared, one], [*shared, other]], device=decoder.device)
    with evaluating(decoder.model), torch.inference_mode():
        states = decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    before = states[:, :-1].float()
    moved = (before[0] - before[1]).norm()
    allowed = (_LOOK_AHEAD + 4 * torch.finfo(states.dtype).eps) * before[0].norm()
    return not bool(moved > allowed)  # damaged weights give no number: that is told of the text
