"""Keys and values of the beginning of every prompt, computed once for all sentences."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from stickytoken.encoders.prompted.layer_states import PromptBatch, pooled_states
from stickytoken.encoders.prompted.model import PromptedModel


class FixedBeginnings:
    """The tokens of each prompt before the placeholder or the sentence.

    Later tokens do not change their states, and overwriting starts after them: reuse is exact up to rounding.

    Args:
        model: the model and its prompts; in evaluation and inference mode.
        numbers: layer counts to read after; keys and values are computed up to the largest.
    """

    def __init__(self, model: PromptedModel, numbers: Sequence[int]) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        # Kinds whose only per-row contents are keys and values.
        self._plain = (DynamicLayer, DynamicSlidingWindowLayer)
        prompts = model.prompts
        width = max(prompt.fixed for prompt in prompts)
        ids = torch.zeros((len(prompts), width), dtype=torch.long, device=model.decoder.device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            if prompt.fixed:
                ids[row, width - prompt.fixed :] = torch.tensor(prompt.before[: prompt.fixed])
                mask[row, width - prompt.fixed :] = 1
        last = torch.full((len(prompts),), width - 1, device=ids.device)
        batch = PromptBatch(
            embeddings=model.embed(ids),
            mask=mask,
            positions=(mask.cumsum(1) - 1).clamp(min=0),
            first=last,
            last=last,
            places=None,
            echoes=False,
            beside=model.beside(ids),
        )
        self.mask = mask
        self._cache: Any = DynamicCache(config=model.decoder.model.config)
        pooled_states(model.decoder, batch, numbers, None, self._cache)

    def cache(self, prompts: torch.Tensor) -> Any:
        """Return keys and values for a batch, given the prompt index of each row, shape (rows,)."""
        found = copy.copy(self._cache)
        # A cache grows by allocating new tensors; it never writes to those of the beginning.
        found.layers = [copy.copy(layer) for layer in self._cache.layers]
        if len(self.mask) == 1 and all(type(layer) in self._plain for layer in found.layers):
            for layer in found.layers:
                if layer.get_seq_length():
                    layer.keys = layer.keys.expand(len(prompts), -1, -1, -1)
                    layer.values = layer.values.expand(len(prompts), -1, -1, -1)
        else:
            found.batch_select_indices(prompts.to(self.mask.device))
        return found
