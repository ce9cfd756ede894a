"""The hidden states, attention weights and embeddings of a prompted language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.inspection.attention import Sources, collecting_attention, find_attention_sources
from stickytoken.inspection.module_embedding import Inside, Inspector, split_batch_states
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
        """Keep the encoder and its decoder, and name the pooling: of which states the vector is the mean."""
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
        self, contents: Sequence[tuple[int, ...]], part_of_id: Sequence[Sequence[int]], around_part: int
    ) -> list[Inside]:
        # For each prompt, the states of the model for each text in it.
        insides_by_prompt = [
            self._look_at_prompt(prompt, contents, part_of_id, around_part)
            for prompt in range(len(self._prompted.prompts))
        ]
        insides_by_text = zip(*insides_by_prompt, strict=True)
        return [self._join_prompts(insides_of_text) for insides_of_text in insides_by_text]

    def _look_at_prompt(
        self,
        prompt_index: int,
        contents: Sequence[tuple[int, ...]],
        part_of_id: Sequence[Sequence[int]],
        around_part: int,
    ) -> list[Inside]:
        """Return the internal states of the model for each text in one of the prompts.

        A text is divided into parts, such as words. ``part_of_id`` has, for each text, the part of each of
        its content ids. The tokens of the prompt around a text are its last part, ``around_part``. Attention
        weights are summed over the tokens of the attended part, and averaged over the tokens of the attending
        part. States are pooled over the whole text, and also over each part, with the states of all other
        parts set to zero. The pooled states of a text are also its vector, which is not normalised.
        """
        prompted = self._prompted
        part_count = around_part + 1
        rows = [PromptRow(prompt_index, content) for content in contents]
        # The part of each token in a filled prompt, shape (texts, positions).
        part_of_token = torch.stack(
            [
                _spread_over_positions(prompted, row, parts_of_row, template_value=around_part)
                for row, parts_of_row in zip(rows, part_of_id, strict=True)
            ]
        )
        # 1 if the position belongs to the part, else 0, shape (texts, positions, parts)
        members = torch.nn.functional.one_hot(part_of_token, part_count).float()
        batch = prompted.batch(prompted.layout(rows))
        # The vector is read after this number of layers. The model may have more layers, which are not run.
        reading_layer = prompted.layers_run
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
        return split_batch_states(
            part_of_token=part_of_token.numpy(),
            hidden=hidden,
            attention_by_layer=attention_by_layer,
            pooled=pooled,
            pooled_by_part=pooled_by_part,
            vectors=pooled.cpu().numpy(),
        )

    def _join_prompts(self, insides: Sequence[Inside]) -> Inside:
        """Return the internal states of a text in all prompts, from its internal states in each prompt.

        The tokens of the prompts follow one another; vector, pooled states and attention are means over
        prompts.
        """
        vector = np.stack([inside.vector for inside in insides]).mean(axis=0)
        hidden = [inside.hidden for inside in insides if inside.hidden is not None]
        # `_look_at_prompt` always pools; the conditions are for mypy.
        pooled = [inside.pooled for inside in insides if inside.pooled is not None]
        pooled_by_part = [inside.pooled_by_part for inside in insides if inside.pooled_by_part is not None]
        return Inside(
            part_of_token=np.concatenate([inside.part_of_token for inside in insides]),
            hidden=np.concatenate(hidden, axis=1) if len(hidden) == len(insides) else None,
            attention=_average_attention(insides),
            pooled=np.stack(pooled).mean(axis=0),
            pooled_by_part=np.stack(pooled_by_part).mean(axis=0),
            vector=unit_vectors(vector) if self.encoder.normalizes else vector,
        )


def _average_attention(insides: Sequence[Inside]) -> NDArray[np.float64] | None:
    """Return the mean attention over prompts, in the shape of `Inside.attention`.

    A prompt counts by the number of tokens that the attending part has in it.
    """
    weights = [inside.attention for inside in insides if inside.attention is not None]
    if len(weights) != len(insides):  # the model exposes no attention
        return None
    part_count = weights[0].shape[-1]
    # Number of tokens of each part in each prompt, shape (prompts, parts).
    counts = np.array([np.bincount(inside.part_of_token, minlength=part_count) for inside in insides])
    # If a part has no tokens in a prompt, its attention weights there are NaN, which become 0. The index
    # `[:, None]` multiplies each attending part by its number of tokens.
    sums: NDArray[np.float64] = sum(
        np.nan_to_num(prompt_weights) * prompt_counts[:, None]
        for prompt_weights, prompt_counts in zip(weights, counts, strict=True)
    )
    with np.errstate(invalid="ignore"):  # a part without tokens in any prompt has the mean 0 / 0, NaN
        means: NDArray[np.float64] = sums / counts.sum(axis=0)[:, None]
    return means


def _spread_over_positions(
    model: PromptedModel, row: PromptRow, values: Sequence[int], template_value: int
) -> torch.Tensor:
    # Returns, for each position of a filled prompt, the value of its content id, or ``template_value`` for a
    # position of the template.
    prompt = model.prompts[row.prompt]
    by_position = torch.full((prompt.length(len(row.content)),), template_value)
    for content_range in prompt.content_ranges(len(row.content)):  # two in an echo, which repeats the text
        by_position[content_range.start : content_range.stop] = torch.tensor(values, dtype=torch.long)
    return by_position
