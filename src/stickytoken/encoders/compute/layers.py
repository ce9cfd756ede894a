"""A SentenceTransformer that runs only its first layers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from stickytoken.encoders.compute import computing, switch_on
from stickytoken.encoders.inputs.tokenizer import restoring_settings
from stickytoken.errors import InputError, ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Feature in which sentence-transformers returns the states after every layer.
_STATES_FEATURE = "all_layer_embeddings"
# Class names of the modules that combine the states of several layers.
_MIXING = ("WeightedLayerPooling",)
_SAMPLE = "The cat sat on a warm stone."


def first_layers(model: SentenceTransformer, count: int, name: str) -> SentenceTransformer:
    """Return a model that runs only the first ``count`` layers of the transformer.

    The final norm (if any), the pooling and later modules follow the first ``count`` layers. The new model
    shares its weights with the original, which stays unchanged. If ``count`` is the number of layers, the
    original is returned.
    """
    backbone: Any = getattr(model[0], "model", None)
    config: Any = getattr(backbone, "config", None)
    layer_count = getattr(config, "num_hidden_layers", None)
    # Class names of modules that combine the states of all layers, and so need the later layers.
    mixing_kinds = [type(module).__name__ for module in model if type(module).__name__ in _MIXING]
    if not isinstance(backbone, torch.nn.Module) or not isinstance(layer_count, int) or mixing_kinds:
        kind = mixing_kinds[0] if mixing_kinds else type(model[0]).__name__
        raise ModelError(
            f"{name} cannot give vectors at an earlier layer, because it has a {kind}: leave out the option "
            "layer"
        )
    if not 1 <= count <= layer_count:
        raise InputError(f"layer is {count}, but {name} has {layer_count} layers: pass 1 to {layer_count}")
    if count == layer_count:
        return model
    shorter = _copy_with_shared_weights(model)
    shorter_backbone: Any = shorter[0].model
    for list_name in _name_layer_lists(shorter_backbone, layer_count):
        owner_name, _, attribute = list_name.rpartition(".")
        owner = shorter_backbone.get_submodule(owner_name)
        setattr(owner, attribute, getattr(owner, attribute)[:count])
    # Some modules read from their configuration how many layers there are.
    for module in shorter_backbone.modules():
        module_config: Any = getattr(module, "config", None)
        if getattr(module_config, "num_hidden_layers", None) == layer_count:
            module_config.num_hidden_layers = count
    if not _states_agree(model, shorter, count):
        raise ModelError(
            f"{name} cannot give vectors at an earlier layer: the first layers of a "
            f"{type(backbone).__name__} compute different states without the later layers; leave out the "
            "option layer"
        )
    return shorter


def _copy_with_shared_weights(model: SentenceTransformer) -> SentenceTransformer:
    # `copy.deepcopy` uses the objects in this dict, keyed by their ids, instead of copying them.
    shared: dict[int, Any] = {id(weight): weight for weight in (*model.parameters(), *model.buffers())}
    shared[id(model.tokenizer)] = model.tokenizer  # copying a tokenizer takes seconds
    return copy.deepcopy(model, shared)


def _name_layer_lists(backbone: torch.nn.Module, count: int) -> list[str]:
    # Returns the names of the outermost lists of ``count`` modules, which are taken for the lists of layers.
    names: list[str] = []
    for name, module in backbone.named_modules():  # outer modules first
        # A list inside a layer may also have ``count`` modules by chance.
        is_inside_layers = any(name.startswith(f"{outer}.") for outer in names)
        if isinstance(module, torch.nn.ModuleList) and len(module) == count and not is_inside_layers:
            names.append(name)
    return names


def _states_agree(model: SentenceTransformer, shorter: SentenceTransformer, layer_count: int) -> bool:
    # Whether the first ``layer_count`` layers compute the same states without the later layers.
    states = _compute_states_of_sample(model)
    shorter_states = _compute_states_of_sample(shorter)
    if len(shorter_states) != layer_count + 1:  # the states after the embedding, and after each layer
        return False
    # The last states are not compared, because the shorter model may apply its final norm to them.
    for expected, shorter_state in zip(states[:layer_count], shorter_states[:layer_count], strict=True):
        if expected.shape != shorter_state.shape or not torch.allclose(expected, shorter_state):
            return False
    return True


def _compute_states_of_sample(model: SentenceTransformer) -> tuple[torch.Tensor, ...]:
    # Returns the hidden states of `_SAMPLE` after the embedding, then those after each layer, each of shape
    # (1, tokens, d); empty if the model cannot return them.
    transformer: Any = model[0]
    config = transformer.model.config
    if not hasattr(config, "output_hidden_states"):
        return ()
    with restoring_settings(model.tokenizer):  # preprocessing changes the user's padding and truncation
        features = model.preprocess([_SAMPLE])
    inputs = {
        key: value.to(model.device) if isinstance(value, torch.Tensor) else value
        for key, value in features.items()
    }
    # `computing` takes the model for this thread, without gradients. `switch_on` sets the option of the
    # configuration that makes the model return its states.
    with computing(model), switch_on(config, "output_hidden_states"):
        states: tuple[torch.Tensor, ...] = transformer(inputs).get(_STATES_FEATURE, ())
    return states
