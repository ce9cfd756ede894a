"""Access to a decoder-only language model: its layers, hooks on layers, and the states after each layer."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from stickytoken.encoders.compute import evaluating
from stickytoken.errors import InputError, ModelError

# Architectures whose recurrent layers ignore the attention mask, and so read padding as text.
_READS_PADDING = ("recurrent_gemma",)
# Attributes under which transformers models hold their list of layers.
_LAYER_LISTS = ("layers", "h", "blocks")
# A model counts as causal if a later token changes the states of earlier tokens by at most this fraction of
# their norm, beyond rounding errors.
_LOOK_AHEAD = 1e-4


@dataclass(frozen=True)
class Decoder:
    """A transformers language model without its head, together with its layers."""

    model: Any
    layers: tuple[torch.nn.Module, ...]
    name: str

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    @property
    def rows(self) -> int:
        """Number of token ids that have an embedding."""
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Device of the token embedding, to which inputs are sent."""
        device: torch.device = self.embedding.weight.device
        return device

    @cached_property
    def takes_positions(self) -> bool:
        """Whether the model takes positions as an argument, unlike a model with linear biases (ALiBi)."""
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def per_layer_inputs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return further arguments of the model, keyed by name; empty for most models.

        Gemma 4 adds a second embedding of each token in every layer. The second embeddings are computed from
        token ids, so they must be passed in addition to the input embeddings.
        """
        if not getattr(self.model.config, "hidden_size_per_layer_input", None):
            return {}
        compute_inputs = self.model.get_per_layer_inputs
        # Earlier releases of transformers also require `inputs_embeds`, and ignore it if ids are passed.
        takes_embeddings = "inputs_embeds" in inspect.signature(compute_inputs).parameters
        options = {"inputs_embeds": None} if takes_embeddings else {}
        return {"per_layer_inputs": compute_inputs(ids, **options)}

    def count_layers_until(self, layer: int) -> int:
        """Return how many layers run up to and including this layer; a negative index counts from the end."""
        count = len(self.layers)
        layers_to_run = layer + count + 1 if layer < 0 else layer  # 0 is the embedding, -1 the last layer
        if layers_to_run == 0:
            raise InputError(
                f"layer {layer} of {self.name} is the embedding of the prompt's last token, which is the "
                f"same for every sentence: use 1 to {count}, or -1 to {-count}"
            )
        if not 0 < layers_to_run <= count:
            raise InputError(f"{self.name} has no layer {layer}: use 1 to {count}, or -1 to {-count}")
        return layers_to_run


def find_decoder(model: Any, name: str) -> Decoder:
    """Return the decoder of a transformers model.

    Raises:
        ModelError: the model is not a decoder whose tokens attend to all earlier tokens and to no later ones.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{name} is a {type(model).__name__}, not a transformers language model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}): prompts need a decoder-only model"
        )
    backbone = model.get_decoder()  # without the head
    layer_lists = [getattr(backbone, attribute, None) for attribute in _LAYER_LISTS]
    layers = next((layer_list for layer_list in layer_lists if layer_list is not None), None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise ModelError(
            f"{name} is a {config.model_type} without a list of decoder layers: prompts need a "
            f"decoder-only model"
        )
    if _is_too_recurrent_for_prompts(backbone):
        raise ModelError(
            f"{name} is a {config.model_type}, a recurrent model: prompts need a decoder-only model "
            "whose tokens attend to earlier ones"
        )
    decoder = Decoder(backbone, tuple(layers), name)
    if decoder.device.type == "meta":
        raise ModelError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    if _looks_ahead(decoder):
        raise ModelError(
            f"{name} is a {config.model_type} whose tokens attend to later ones (an encoder): "
            "prompts need a decoder-only model"
        )
    return decoder


def _is_too_recurrent_for_prompts(backbone: Any) -> bool:
    # transformers has no public attribute that says whether a model has recurrent layers.
    is_recurrent = bool(getattr(backbone, "_is_stateful", False))
    has_attention = getattr(backbone.config, "num_attention_heads", None) is not None
    is_only_recurrent = is_recurrent and not has_attention  # no token attends to an earlier token
    # If padding is read, the vector of a text depends on the lengths of the other texts in its batch.
    reads_padding = backbone.config.model_type in _READS_PADDING
    return is_only_recurrent or reads_padding


def _looks_ahead(decoder: Decoder) -> bool:
    """Return whether the states of tokens depend on a later token.

    Two inputs that differ only in the last token show it.
    """
    # Any ids will do. The modulo keeps ids inside a small vocabulary.
    first_tokens = [token % decoder.rows for token in range(5, 9)]
    last_tokens = [token % decoder.rows for token in (9, 10)]
    ids = torch.tensor([[*first_tokens, last_token] for last_token in last_tokens], device=decoder.device)
    with evaluating(decoder.model), torch.inference_mode():
        states = decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    first_states, second_states = states[:, :-1].float()  # of each input, without the last token
    largest_difference = (_LOOK_AHEAD + 4 * torch.finfo(states.dtype).eps) * first_states.norm()
    # Damaged weights give NaN, which makes this comparison false. The damage is reported later, with the text
    # whose vector is not finite.
    return bool((first_states - second_states).norm() > largest_difference)


class Hook(NamedTuple):
    """A function to call whenever a module runs."""

    register: Callable[..., Any]  # method of the module that registers the hook
    call: Callable[..., Any]


def hook_before(layer: torch.nn.Module, call: Callable[..., Any]) -> Hook:
    """Return a hook that is called before a layer runs, with the layer, its arguments and its options."""
    return Hook(partial(layer.register_forward_pre_hook, with_kwargs=True), call)


@contextmanager
def _keep_hooks(hooks: Iterable[Hook]) -> Iterator[None]:
    """Register hooks inside a ``with`` block.

    The hooks act only on calls by the current thread, because other threads may use the same model meanwhile.
    """
    owner = threading.get_ident()

    def call_for_owner(call: Callable[..., Any], *args: Any) -> Any:
        """Call a hook if the current thread registered it; otherwise, change nothing.

        The number of arguments is left open, because torch may leave out the last argument while another
        thread removes the hook.
        """
        return call(*args) if threading.get_ident() == owner else None

    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.register(partial(call_for_owner, hook.call)).remove)
        yield


class _LayerReachedError(Exception):
    """Stops a forward pass after the last requested layer."""


def _require_states(output: Any) -> torch.Tensor:
    # Many layers return a tuple of their states and further values.
    states: torch.Tensor = output[0] if isinstance(output, (tuple, list)) else output
    if states.ndim != 3:
        raise ModelError(
            f"the layers of this model return states of shape {tuple(states.shape)}: prompts need a model "
            "with one state per token, of shape (rows, tokens, d)"
        )
    return states


def find_layer_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the states that a layer receives, shape (rows, tokens, d), from its arguments."""
    return _require_states(args[0] if args else kwargs["hidden_states"])


def compute_states_after(
    decoder: Decoder,
    layer_counts: Sequence[int],
    inputs: dict[str, Any],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    hooks: Iterable[Hook] = (),
) -> dict[int, torch.Tensor]:
    """Run the model up to the last requested layer, and return its states.

    Args:
        decoder: the model.
        layer_counts: the numbers of layers after which states are returned; 0 stands for the first layer's
            input.
        inputs: keyword arguments of the model.
        keep: called with states of shape (rows, tokens, d); returns what to keep of these states.
        hooks: hooks that change the states while the model runs.

    Returns:
        ``keep(states)`` for each requested number of layers, keyed by that number. States after the model's
        last layer include the final norm; all others are the raw residual stream.
    """
    kept_states: dict[int, torch.Tensor] = {}
    layers = decoder.layers
    last_count = max(layer_counts)

    def record(layer_count: int, _: torch.nn.Module, __: tuple[Any, ...], output: Any) -> None:
        kept_states[layer_count] = keep(_require_states(output))
        if layer_count == last_count:
            raise _LayerReachedError

    def record_input(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept_states[0] = keep(find_layer_input(args, kwargs))
        if last_count == 0:
            raise _LayerReachedError

    # The states after the last layer are taken from the output of the model, which includes the final norm.
    recording_hooks = [
        Hook(layers[layer_count - 1].register_forward_hook, partial(record, layer_count))
        for layer_count in layer_counts
        if 0 < layer_count < len(layers)
    ]
    if 0 in layer_counts:
        recording_hooks.append(hook_before(layers[0], record_input))
    with _keep_hooks([*hooks, *recording_hooks]), suppress(_LayerReachedError):
        output = decoder.model(**inputs)
        # No hook stopped the model, so the states after the last layer are requested.
        kept_states[len(layers)] = keep(output.last_hidden_state)
    return kept_states
