"""A decoder, its tokenizer and a prompt: from sentences to the model's input."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from stickytoken.encoders.prompted import layers, prompts
from stickytoken.encoders.prompted.prompts import Ids
from stickytoken.errors import InputError
from stickytoken.insertion import TokenizedText

_PLACEHOLDER_SEED = 0
# Rows of the embedding sampled for the norm of the placeholder's vector.
_SAMPLED_ROWS = 1024
# Sentences that both prompts of contrast must split alike; some may merge with quotation marks.
_ALIKE = ("a", "The dog's bird", "7 I?", "'we'", "")


class PromptRow(NamedTuple):
    prompt: int  # its index
    content: Ids  # of a sentence in it


@dataclass(frozen=True)
class Reading:
    prompt: prompts.Prompt
    prepending: layers.TokenPrepending | None
    layer: int  # an index into the embedding and the outputs of all layers; -1 is after the final norm
    contrast: prompts.Contrast | None = None

    def __post_init__(self) -> None:
        if self.prompt.echoes and self.prepending is not None:
            raise InputError(
                "an echo prompt already shows the whole sentence to every token: leave out token prepending"
            )
        if self.prompt.echoes and self.contrast is not None:
            raise InputError(
                "an echo prompt reads every token of the sentence, and contrast changes only the last token "
                "of a prompt: leave out contrast"
            )
        if self.contrast is not None and not self.prompt.quoted:
            raise InputError(
                f"contrast needs a prompt that quotes the sentence as its auxiliary prompt does: write "
                f'"{prompts.SENTENCE}" with the quotation marks'
            )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a prompt that lead to this reading, without presets."""
        prompt, span, contrast = self.prompt, self.prepending, self.contrast
        found: dict[str, Any] = {
            "prompt": prompt.name if prompt.name in prompts.PROMPTS else prompt.templates[0],
            "token_prepending": span is not None,
            **{name: getattr(span, name, None) for name in ("start", "exit")},
            "layer": self.layer,
        }
        if contrast is None:
            return found  # as earlier releases saved it, and can load it
        return found | {
            "contrast": True,
            "contrast_layer": contrast.layer,
            "contrast_strength": contrast.strength,
            "contrast_rule": str(contrast.rule),
        }


Features = dict[str, Any]
# Index tensors of filled prompts, by their names in sentence-transformers.
_LAYOUT = ("input_ids", "attention_mask", "position_ids", "prompt_slots")


class PromptedModel:
    def __init__(
        self, decoder: layers.Decoder, reading: Reading, own: prompts.OwnTokenizer, *, attends: bool = False
    ) -> None:
        # An auxiliary model is read where the last layer that runs projects its attention.
        self.attends = attends
        self.decoder, self.reading, name = decoder, reading, decoder.name
        self.number = decoder.layer_number(reading.layer)  # how many layers run
        prepending, contrast, count = reading.prepending, reading.contrast, len(decoder.layers)
        if prepending is not None and prepending.start >= count:
            raise InputError(
                f"start is {prepending.start}, but {name} has {count} layers: pass 0 to {count - 1}"
            )
        self.padding_id, self.placeholder_id = own.padding_id, own.placeholder_id
        self._texts = prompts.PromptTokenizer(
            own.tokenizer, own.special, reading.prompt, prepending=prepending is not None
        )
        self.prompts = self._texts.prompts
        self.auxiliary: PromptedModel | None = None
        if contrast is None:
            return
        wanted = f"the contrast layer is {contrast.layer}"
        if contrast.layer >= count:
            raise InputError(f"{wanted}, but {name} has {count} layers: pass 0 to {count - 1}")
        if contrast.layer >= self.number:
            raise InputError(
                f"{wanted}, counted from 0, but vectors of {name} are read after {self.number} layers, so "
                f"nothing would change: pass 0 to {self.number - 1}, or read a later layer"
            )
        layers.output_projection(decoder, contrast.layer)
        auxiliary = Reading(prompts.AUXILIARY, None, contrast.layer + 1)
        self.auxiliary = PromptedModel(decoder, auxiliary, own, attends=True)
        if [text.ids for text in self.tokenize(_ALIKE)] != [
            text.ids for text in self.auxiliary.tokenize(_ALIKE)
        ]:
            raise InputError(
                f"the tokenizer of {name} splits a sentence in this prompt in another way than in the "
                f'auxiliary prompt of contrast: write "{prompts.SENTENCE}" with a space on both sides'
            )

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        sentences = [" ".join(text.split()) for text in texts]
        if self.reading.prompt.quoted:
            sentences = [prompts.clean_sentence(sentence) for sentence in sentences]
        return self._texts.tokenize(sentences)

    def rows(self, contents: Sequence[Ids]) -> list[PromptRow]:
        return [PromptRow(prompt, content) for content in contents for prompt in range(len(self.prompts))]

    def length(self, content: int) -> int:
        longest = max(prompt.length(content) for prompt in self.prompts)
        return longest if self.auxiliary is None else max(longest, self.auxiliary.length(content))

    def knows(self, token_id: int) -> bool:
        return 0 <= token_id < self.decoder.rows or token_id == self.placeholder_id

    @cached_property
    def placeholder(self) -> torch.Tensor | None:
        """The placeholder's vector if the embedding has no row for it."""
        rows, device = self.decoder.rows, self.decoder.device
        if self.placeholder_id is None or self.placeholder_id < rows:
            return None  # a row that the matrix has is its vector, as in the published code
        sampled = torch.arange(0, rows, max(1, rows // _SAMPLED_ROWS), device=device)
        with torch.inference_mode():
            scale = self.decoder.embedding(sampled).float().square().mean().sqrt().item()
            size = self.decoder.embedding(sampled[:1]).shape[-1]
        # Of the mean norm of embedded tokens; any other will do (Fu et al., table 4).
        drawn = np.random.default_rng(_PLACEHOLDER_SEED).standard_normal(size, dtype=np.float32)
        return torch.from_numpy(drawn * np.float32(scale))

    def forget(self) -> None:
        vars(self).pop("placeholder", None)
        if self.auxiliary is not None:
            self.auxiliary.forget()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        vector = self.placeholder
        if vector is None:
            embedded: torch.Tensor = self.decoder.embedding(ids)
            return embedded
        placed = torch.eq(ids, self.placeholder_id or 0)
        embedded = self.decoder.embedding(ids.masked_fill(placed, 0))
        return torch.where(placed[..., None], vector.to(embedded), embedded)

    def layout(self, rows: Sequence[PromptRow], *, skipping: bool = False) -> Features:
        """Fill prompts, padded on the left; the mask of 0 and positions do not count padding.

        Slots are the indices of the first pooled token, the last one and the placeholder, shape (rows, 3).
        """
        filled, past, slots = [], [], []
        for number, content in rows:
            prompt = self.prompts[number]
            length, skipped = prompt.length(len(content)), prompt.fixed if skipping else 0
            filled.append(prompt.fill(content)[skipped:])
            past.append(skipped)
            place = 0 if prompt.place is None else prompt.place % length
            # Counted from the end, where padding and skipped tokens do not matter.
            slots.append([each - length for each in (*prompt.pooled(len(content)), place)])
        return _padded(filled, past, slots)

    def batch(
        self, layout: Features, past: torch.Tensor | None = None, auxiliary: torch.Tensor | None = None
    ) -> layers.PromptBatch:
        device = self.decoder.device
        ids, mask, positions, slots = (layout[key].to(device) for key in _LAYOUT)
        first, last, places = slots.unbind(dim=1)
        return layers.PromptBatch(
            embeddings=self.embed(ids),
            mask=mask if past is None else torch.cat([past.to(device), mask], dim=1),
            positions=positions,
            first=first,
            last=last,
            places=places,
            echoes=self.reading.prompt.echoes,
            prepending=self.reading.prepending,
            # A placeholder without a row gets the further inputs of token 0.
            beside=self.decoder.beside(ids.masked_fill(ids >= self.decoder.rows, 0)),
            contrast=self.reading.contrast,
            auxiliary=auxiliary,
        )

    def attended(self, batch: layers.PromptBatch, cache: Any = None) -> torch.Tensor:
        return layers.attended_values(self.decoder, batch, self.number - 1, cache)


def _padded(filled: Sequence[Ids], past: Sequence[int], slots: Sequence[Sequence[int]]) -> Features:
    """Pad on the left, given the tokens before each row and its slots counted from the end."""
    width = max(map(len, filled))
    ids = torch.tensor([(0,) * (width - len(row)) + tuple(row) for row in filled], dtype=torch.long)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in filled], dtype=torch.long)
    positions = (mask.cumsum(1) - 1).clamp(min=0) + torch.tensor(past)[:, None]
    return dict(zip(_LAYOUT, (ids, mask, positions, torch.tensor(slots) + width), strict=True))


class FixedBeginnings:
    """The tokens of each prompt before the placeholder or the sentence, whose states nothing changes."""

    def __init__(self, model: PromptedModel, numbers: Sequence[int]) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        # Kinds whose only per-row contents are keys and values.
        self._plain = (DynamicLayer, DynamicSlidingWindowLayer)
        rows = [prompt.before[: prompt.fixed] for prompt in model.prompts]
        batch = model.batch(_padded(rows, [0] * len(rows), [[-1, -1, -1]] * len(rows)))
        batch = replace(batch, prepending=None)
        self.mask = batch.mask
        self._cache: Any = DynamicCache(config=model.decoder.model.config)
        layers.pooled_states(model.decoder, batch, numbers, self._cache)

    def cache(self, rows: torch.Tensor) -> Any:
        found = copy.copy(self._cache)
        # A cache grows by allocating new tensors; it never writes to those of the beginning.
        found.layers = [copy.copy(layer) for layer in self._cache.layers]
        if len(self.mask) > 1 or any(type(layer) not in self._plain for layer in found.layers):
            found.batch_select_indices(rows.to(self.mask.device))
            return found
        for layer in found.layers:
            if layer.get_seq_length():
                layer.keys = layer.keys.expand(len(rows), -1, -1, -1)
                layer.values = layer.values.expand(len(rows), -1, -1, -1)
        return found
