"""The hidden states, attention weights and embeddings of a prompted language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.inspection.attention import Sources, collecting_attention, find_attention_sources
from stickytoken.inspection.module_embedding import Inside, Inspector, split_texts
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.running.model import PromptedModel, PromptRow
from stickytoken.language_models.running.steering import compute_prompt_states
from stickytoken.unit_vectors import unit_vectors


class PromptInspector(Inspector):
    """Gives access to the internal states of a prompted language model.

    The tokens around a text come from the prompt template, including the placeholder token. `look` does
    not record the layers after the layer from which the vector is read.
    """

    encoder: CausalPromptEncoder

    def __init__(self, encoder: CausalPromptEncoder) -> None:
        """Keep the parts of the encoder, and name its pooling: which states its vector is the mean of."""
        self.encoder = encoder
        self._prompted = encoder.prompted
        self._decoder = encoder.prompted.decoder
        self._embeddings = self._decoder.embedding
        # The base class distinguishes a model from the transformer inside it. Here, both are the decoder.
        self._network = self._decoder.model
        self._backbone = self._decoder.model
        self._length = encoder.prompted.length
        if encoder.prompted.reading.prompt.echoes:
            self.pooling = "mean"
        elif len(encoder.prompted.prompts) == 1:
            self.pooling = "lasttoken"
        else:
            self.pooling = "lasttoken of several prompts"

    @cached_property
    def _attention_sources(self) -> Sources:
        any_ids = torch.tensor([self.encoder.usable_entries()[:3]], device=self._decoder.device)
        model = self._decoder.model

        def run_once() -> object:
            return model(input_ids=any_ids, attention_mask=torch.ones_like(any_ids), use_cache=False)

        return find_attention_sources(model, model, run_once)

    def look_at_batch(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], around_label: int
    ) -> list[Inside]:
        # For each prompt, the states of the model for each text in it.
        insides_by_prompt = [
            self._look_at_prompt(prompt, contents, labels, around_label)
            for prompt in range(len(self._prompted.prompts))
        ]
        insides_by_text = zip(*insides_by_prompt, strict=True)
        return [self._join_prompts(insides_of_text) for insides_of_text in insides_by_text]

    def _look_at_prompt(
        self,
        prompt_index: int,
        contents: Sequence[tuple[int, ...]],
        labels: Sequence[Sequence[int]],
        around_label: int,
    ) -> list[Inside]:
        """Return the internal states of the model for each text in one of the prompts.

        A text is divided into parts, such as words. ``labels`` has the part of each of its tokens; those of
        the prompt around it are the last part, ``around_label``. Attention weights are summed over the
        positions of the attended part, and averaged over those of the attending part. States are pooled over
        the whole text, and also over each part, with the states of all other parts set to zero. The pooled
        states of a text are also its vector, which is not normalised.
        """
        prompted = self._prompted
        part_count = around_label + 1
        rows = [PromptRow(prompt_index, content) for content in contents]
        # The part of each position in a filled prompt, shape (texts, positions).
        part_labels = torch.stack(
            [
                _spread_over_positions(prompted, row, row_labels, template_value=around_label)
                for row, row_labels in zip(rows, labels, strict=True)
            ]
        )
        # 1 if the position belongs to the part, else 0, shape (texts, positions, parts)
        members = torch.nn.functional.one_hot(part_labels, part_count).float()
        batch = prompted.batch(prompted.layout(rows))
        # The vector is read after this number of layers. The model may have more layers, which are not run.
        reading_layer = prompted.layer_count
        model = self._decoder.model
        with collecting_attention(model, self._attention_sources, members) as attention_by_layer:
            states_by_layer = compute_prompt_states(self._decoder, batch, range(reading_layer + 1))
        read_states = states_by_layer[reading_layer]  # shape (texts, positions, d)
        part_masks = members.to(read_states).unbind(dim=-1)  # of each part, shape (texts, positions)
        # Pooling is linear, so the results for the states of single parts add up to the pooled states.
        pooled_by_part = torch.stack(
            [batch.pool(read_states * mask[..., None]).float() for mask in part_masks], dim=1
        )
        pooled = batch.pool(read_states).float()
        in_order = [states_by_layer[layer].float().cpu() for layer in sorted(states_by_layer)]
        # Layers that differ in width cannot be stacked.
        have_one_shape = len({states.shape for states in in_order}) == 1
        hidden = torch.stack(in_order, dim=1) if have_one_shape else None
        return split_texts(
            labels=part_labels.numpy(),
            hidden=hidden,
            attention_by_layer=attention_by_layer,
            pooled=pooled,
            pooled_by_part=pooled_by_part,
            vectors=pooled.cpu().numpy(),
        )

    def _join_prompts(self, insides: Sequence[Inside]) -> Inside:
        vector = np.stack([inside.vector for inside in insides]).mean(axis=0)
        hidden = [inside.hidden for inside in insides if inside.hidden is not None]
        # `_look_at_prompt` always pools; the conditions are for mypy.
        pooled = [inside.pooled for inside in insides if inside.pooled is not None]
        pooled_by_part = [inside.pooled_by_part for inside in insides if inside.pooled_by_part is not None]
        return Inside(
            labels=np.concatenate([inside.labels for inside in insides]),
            hidden=np.concatenate(hidden, axis=1) if len(hidden) == len(insides) else None,
            attention=_average_attention(insides),
            pooled=np.stack(pooled).mean(axis=0),
            pooled_by_part=np.stack(pooled_by_part).mean(axis=0),
            vector=unit_vectors(vector) if self.encoder.normalizes else vector,
        )


def _average_attention(insides: Sequence[Inside]) -> NDArray[np.float64] | None:
    """The mean over prompts, weighted by the attending part's positions; shaped like `Inside.attention`."""
    weights = [inside.attention for inside in insides if inside.attention is not None]
    if len(weights) != len(insides):  # the model exposes none
        return None
    part_count = weights[0].shape[-1]
    # Positions of each part in each prompt, shape (prompts, parts).
    counts = np.array([np.bincount(inside.labels, minlength=part_count) for inside in insides])
    # If a part has no positions in a prompt, its weights there are NaN. Treat them as 0. `[:, None]` weights
    # the attending parts.
    sums: NDArray[np.float64] = sum(
        np.nan_to_num(prompt_weights) * prompt_counts[:, None]
        for prompt_weights, prompt_counts in zip(weights, counts, strict=True)
    )
    with np.errstate(invalid="ignore"):  # a part without positions in any prompt has the mean 0 / 0, NaN
        means: NDArray[np.float64] = sums / counts.sum(axis=0)[:, None]
    return means


def _spread_over_positions(
    model: PromptedModel, row: PromptRow, values: Sequence[int], template_value: int
) -> torch.Tensor:
    prompt = model.prompts[row.prompt]
    by_position = torch.full((prompt.length(len(row.content)),), template_value)
    for content_range in prompt.content_ranges(len(row.content)):  # two in an echo, which repeats the text
        by_position[content_range.start : content_range.stop] = torch.tensor(values, dtype=torch.long)
    return by_position
