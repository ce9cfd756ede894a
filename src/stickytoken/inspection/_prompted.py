"""Look inside a prompted language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import PromptBatch, pooled_states, prompt_states
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow
from stickytoken.inspection._attention import AttentionCapture, Sources, attention_of, attention_sources
from stickytoken.inspection.module_embedding import BatchInspector
from stickytoken.inspection.protocol import EmbeddedText, Inside, as_numbers
from stickytoken.unit_vectors import unit_vectors


class PromptInspector(BatchInspector):
    """Look into a prompted language model; see `Inspector`.

    The template, including the placeholder, counts as the part that the model puts around a text. Layers
    after the one that is read are not recorded, and neither is the auxiliary prompt of contrast, which
    attributions include.
    """

    encoder: CausalPromptEncoder

    def __init__(self, encoder: CausalPromptEncoder) -> None:
        self._prompted = encoder.prompted
        self._decoder = encoder.prompted.decoder
        super().__init__(encoder, self._decoder.model, self._decoder.model)

    @property
    def pooling(self) -> str:
        """How hidden states are pooled."""
        if self._prompted.reading.prompt.echoes:
            return "mean"
        return "lasttoken" if len(self._prompted.prompts) == 1 else "lasttoken of several prompts"

    @property
    def has_layers(self) -> bool:
        """Whether there are layers between embeddings and pooling; always true."""
        return True

    def embedding_matrix(self) -> NDArray[np.float32]:
        """Return the token embeddings, shape (entries, D)."""
        weight: NDArray[np.float32] = self._decoder.embedding.weight.detach().float().cpu().numpy()
        return weight

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        """A text in all prompts as the embeddings that the model reads; see `Inspector.embedded`."""
        ids = tuple(content)
        prompted, auxiliary = self._prompted, self._prompted.auxiliary
        models = [prompted] if auxiliary is None else [prompted, auxiliary]
        rows = [(model, row) for model in models for row in model.rows([ids])]
        batches = [model.batch(model.layout([row])) for model, row in rows]
        sizes = [batch.embeddings.shape[1] for batch in batches]
        embedded = torch.cat([batch.embeddings[0] for batch in batches])
        places = torch.cat([_places(model, row, range(len(ids)), -1) for model, row in rows])

        def vectors(changed: torch.Tensor) -> torch.Tensor:
            parts = torch.split(changed, sizes, dim=1)
            filled = [_repeated(batch, each) for batch, each in zip(batches, parts, strict=True)]
            if auxiliary is not None:
                values = auxiliary.attended(filled.pop())
                filled = [replace(batch, subtraction=prompted.subtraction(values)) for batch in filled]
            found = [self._read(batch) for batch in filled]
            # Where a model is spread over devices, its last layer computes elsewhere.
            return torch.stack(found).mean(dim=0).to(changed.device)

        return EmbeddedText(embedded, self._filler(embedded), places.to(embedded.device), vectors)

    def _read(self, batch: PromptBatch) -> torch.Tensor:
        reading, number = self._prompted.reading, self._prompted.number
        return pooled_states(self._decoder, batch, [number], reading.prepending)[:, 0]

    def _filler(self, embedded: torch.Tensor) -> torch.Tensor:
        token_id = self._prompted.padding_id
        if token_id is None or not 0 <= token_id < self._decoder.rows:
            return torch.zeros_like(embedded[0])
        found: torch.Tensor = self._decoder.embedding(torch.tensor([[token_id]], device=embedded.device))
        return found[0, 0]

    @cached_property
    def _attention_sources(self) -> Sources:
        ids = torch.tensor([self.encoder.usable_entries()[:3]], device=self._decoder.device)
        model = self._decoder.model
        return attention_sources(
            model, model, lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        )

    def _length(self, content: int) -> int:
        return self._prompted.length(content)

    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        seen = [
            self._look_in(prompt, contents, labels, parts) for prompt in range(len(self._prompted.prompts))
        ]
        return [self._joined([each[row] for each in seen]) for row in range(len(contents))]

    def _look_in(
        self, prompt: int, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Look at texts of one length in one prompt."""
        prompted, decoder = self._prompted, self._decoder
        rows = [PromptRow(prompt, content) for content in contents]
        places = torch.stack(
            [_places(prompted, row, own, parts) for row, own in zip(rows, labels, strict=True)]
        )
        members = torch.nn.functional.one_hot(places, parts + 1).float()
        values = None
        if (auxiliary := prompted.auxiliary) is not None:
            values = auxiliary.attended(auxiliary.batch(auxiliary.layout(auxiliary.rows(contents))))
        batch = prompted.batch(prompted.layout(rows), auxiliary=values)
        capture = AttentionCapture(members, self._attention_sources)
        with attention_of(decoder.model, capture):
            states = prompt_states(decoder, batch, range(prompted.number + 1), prompted.reading.prepending)
        last = states[prompted.number]
        masks = members.to(last).unbind(dim=-1)
        supplied = torch.stack([batch.pool(last * mask[..., None]).float() for mask in masks], dim=1)
        pooled = batch.pool(last).float()
        hidden, attention = _stacked(states), capture.result()
        return [
            Inside(
                labels=places[row].numpy(),
                hidden=None if hidden is None else hidden[row].numpy(),
                attention=None if attention is None else as_numbers(attention[row]),
                pooled=as_numbers(pooled[row]),
                supplied=as_numbers(supplied[row]),
                vector=pooled[row].cpu().numpy(),
            )
            for row in range(len(contents))
        ]

    def _joined(self, prompts: Sequence[Inside]) -> Inside:
        """Join one text in several prompts: all of its positions, and the mean of the vectors."""
        vector = np.stack([each.vector for each in prompts]).mean(axis=0)
        if self.encoder.normalizes:
            vector = unit_vectors(vector)
        states = [each.hidden for each in prompts if each.hidden is not None]
        pooled = np.stack([each.pooled for each in prompts if each.pooled is not None])
        supplied = np.stack([each.supplied for each in prompts if each.supplied is not None])
        return Inside(
            labels=np.concatenate([each.labels for each in prompts]),
            hidden=np.concatenate(states, axis=1) if len(states) == len(prompts) else None,
            attention=_mean_attention(prompts),
            pooled=pooled.mean(axis=0),
            supplied=supplied.mean(axis=0),
            vector=vector,
        )


def _places(model: PromptedModel, row: PromptRow, values: Sequence[int], other: int) -> torch.Tensor:
    """Return a value per position of a prompt: that of its content id, or ``other`` for the template."""
    prompt = model.prompts[row.prompt]
    found = torch.full((prompt.length(len(row.content)),), other)
    for span in prompt.places(len(row.content)):
        found[span.start : span.stop] = torch.tensor(values, dtype=torch.long)
    return found


def _repeated(batch: PromptBatch, embeddings: torch.Tensor) -> PromptBatch:
    """Repeat a batch of one prompt for each of several embeddings."""
    count = len(embeddings)
    return replace(
        batch,
        embeddings=embeddings,
        mask=batch.mask.expand(count, -1),
        positions=batch.positions.expand(count, -1),
        first=batch.first.expand(count),
        last=batch.last.expand(count),
        places=None if batch.places is None else batch.places.expand(count),
        beside={name: value.expand(count, *value.shape[1:]) for name, value in batch.beside.items()},
    )


def _stacked(states: dict[int, torch.Tensor]) -> torch.Tensor | None:
    """Stack hidden states, shape (texts, layers + 1, T, D); None if layers differ in width."""
    found = [states[number].float().cpu() for number in sorted(states)]
    return torch.stack(found, dim=1) if len({each.shape for each in found}) == 1 else None


def _mean_attention(prompts: Sequence[Inside]) -> NDArray[np.float64] | None:
    """Average weights over the positions of all prompts; NaN for a part without any position."""
    weights = [each.attention for each in prompts if each.attention is not None]
    if len(weights) < len(prompts):
        return None
    parts = weights[0].shape[-1]
    counts: Any = np.array([np.bincount(each.labels, minlength=parts) for each in prompts])
    # A part that is missing in one prompt has NaN and no positions there.
    sums = sum(np.nan_to_num(each) * count[:, None] for each, count in zip(weights, counts, strict=True))
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = sums / counts.sum(axis=0)[:, None]
    return found
