"""Read the vectors after some layers of a SentenceTransformer, as if the later layers were not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stickytoken.errors import InputError, ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_STATES = "all_layer_embeddings"
# Where architectures keep the norm behind their last layer; most have none.
_NORMS = ("final_norm", "norm", "ln_f", "final_layer_norm", "final_layernorm")
# Modules that read more than the last layer.
_MIXING = ("WeightedLayerPooling",)


class LayerReader:
    """Compute the vectors after some layers in one pass, each by the final norm and all later modules.

    Layers are counted from 1.
    """

    def __init__(self, model: SentenceTransformer, layers: tuple[int, ...], name: str) -> None:
        self._model, self.layers, self._name = model, layers, name
        backbone = getattr(model[0], "model", None)
        config = getattr(backbone, "config", None)
        count = getattr(config, "num_hidden_layers", None)
        mixing = [type(module).__name__ for module in model if type(module).__name__ in _MIXING]
        if not isinstance(count, int) or not hasattr(config, "output_hidden_states") or mixing:
            what = mixing[0] if mixing else type(model[0]).__name__
            raise ModelError(
                f"the layers of {name} cannot be read, because it has a {what}: leave out --layers"
            )
        for layer in layers:
            if not 1 <= layer <= count:
                raise InputError(f"layers include {layer}, and {name} has {count}: use 1 to {count}")
        self.count = count
        self._config: Any = config
        self._norm = _final_norm(backbone)

    @contextmanager
    def keeping_states(self) -> Iterator[None]:
        """Let the model return the states of all layers; several threads may compute meanwhile."""
        before = self._config.output_hidden_states
        self._config.output_hidden_states = True
        try:
            yield
        finally:
            self._config.output_hidden_states = before

    def vectors(self, features: dict[str, Any]) -> torch.Tensor:
        """Return the model's own vectors and, behind each, those after the layers; (n, (1 + layers) x d).

        Call it within `keeping_states`.
        """
        first, *later = self._model
        found = first(features)
        states, last = found.pop(_STATES, ()), found["token_embeddings"]
        if len(states) != self.count + 1 or not self._leads_to(states[-1], last):
            raise ModelError(f"the layers of {self._name} cannot be read: leave out --layers")
        chosen = [
            last,
            *(last if layer == self.count else self._normed(states[layer]) for layer in self.layers),
        ]
        return torch.cat([_after(later, {**found, "token_embeddings": each}) for each in chosen], dim=1)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = states if self._norm is None else self._norm(states)
        return normed

    def _leads_to(self, states: torch.Tensor, last: torch.Tensor) -> bool:
        """Whether the states after the last layer, with or without the final norm, are the model's output."""
        return any(
            each.shape == last.shape and torch.allclose(each, last, rtol=1e-3, atol=1e-4)
            for each in (states, self._normed(states))
        )


def _final_norm(backbone: Any) -> Any:
    """Return the norm behind the last layer; None if there is none."""
    for owner in (backbone, getattr(backbone, "encoder", None)):
        for name in _NORMS:
            if isinstance(found := getattr(owner, name, None), torch.nn.Module):
                return found
    return None


def _after(modules: list[Any], features: dict[str, Any]) -> torch.Tensor:
    for module in modules:
        features = module(features)
    vectors: torch.Tensor = features["sentence_embedding"]
    return vectors.float()
