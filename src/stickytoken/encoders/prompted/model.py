"""A decoder, its tokenizer and a prompt: from sentences to the model's input."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from stickytoken.encoders.prompted._prompt_ids import (
    Ids,
    OwnTokenizer,
    PromptIds,
    PromptTokenizer,
    PromptTokenizers,
)
from stickytoken.encoders.prompted.attention_output import (
    Decoder,
    Subtraction,
    attention_heads,
    find_decoder,
    output_projection,
)
from stickytoken.encoders.prompted.layer_states import (
    PromptBatch,
    TokenPrepending,
    attended_values,
    pooled_states,
)
from stickytoken.encoders.prompted.prompts import (
    AUXILIARY,
    SENTENCE,
    Contrast,
    ContrastRule,
    Prompt,
    clean_sentence,
    join_words,
)
from stickytoken.errors import InputError
from stickytoken.insertion import TokenizedText

_PLACEHOLDER_SEED = 0
# Rows of the embedding sampled for the norm of the placeholder's vector.
_SAMPLED_ROWS = 1024
# Sentences that both prompts of contrast must split alike; some may merge with quotation marks.
_ALIKE = ("a", "The dog's bird", "7 I?", "'we'", "")


class PromptRow(NamedTuple):
    """One sentence in one of the prompts: index of the prompt, content ids of the sentence."""

    prompt: int
    content: Ids


@dataclass(frozen=True)
class Reading:
    """How vectors are read from a decoder.

    Attributes:
        prompt: the text around the sentence.
        prepending: layers at which the placeholder is overwritten; None is the plain prompt.
        layer: layer to read, an index into the embedding and the outputs of all layers; -1 is after the
            final norm.
        contrast: where the auxiliary prompt is subtracted; None is never.
    """

    prompt: Prompt
    prepending: TokenPrepending | None
    layer: int
    contrast: Contrast | None = None

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
                f'"{SENTENCE}" with the quotation marks'
            )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a prompt that lead to this reading, without presets."""
        span, contrast = self.prepending, self.contrast
        found: dict[str, Any] = {
            "prompt": self.prompt.source,
            "token_prepending": span is not None,
            "start": None if span is None else span.start,
            "exit": None if span is None else span.exit,
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


class PromptedModel:
    """A prompted language model. The model and its tokenizer are not changed."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        tokenizers: PromptTokenizers | None = None,
        own: OwnTokenizer | None = None,
    ) -> None:
        self.decoder = model if isinstance(model, Decoder) else find_decoder(model, name)
        self.reading = reading
        self.number = self.decoder.layer_number(reading.layer)
        prepending = reading.prepending
        if prepending is not None:
            prepending.require_layers(len(self.decoder.layers), name)
        if own is None:
            tokenizers = tokenizers or PromptTokenizers(tokenizer, name)
            own = tokenizers.plain if prepending is None else tokenizers.prepending
        self.padding_id = own.padding_id
        self.placeholder_id = own.placeholder_id
        self._texts = PromptTokenizer(
            own.tokenizer, own.special, reading.prompt, prepending=prepending is not None
        )
        # If the matrix has a row for the placeholder, that row is its vector, as in the published code.
        self._outside = self.placeholder_id is not None and self.placeholder_id >= self.decoder.rows
        self.auxiliary = (
            None if reading.contrast is None else self._auxiliary(reading.contrast, tokenizer, own)
        )

    def _auxiliary(self, contrast: Contrast, tokenizer: Any, own: OwnTokenizer) -> PromptedModel:
        """The same model with the auxiliary prompt, run up to the layer of contrast."""
        decoder = self.decoder
        contrast.require_layers(len(decoder.layers), self.number, decoder.name)
        output_projection(decoder, contrast.layer)
        reading = Reading(AUXILIARY, None, contrast.layer + 1)
        found = PromptedModel(decoder, tokenizer, decoder.name, reading, own=own)
        for mine, other in zip(self.tokenize(_ALIKE), found.tokenize(_ALIKE), strict=True):
            if mine.ids != other.ids:
                raise InputError(
                    f"the tokenizer of {decoder.name} splits a sentence in this prompt in another way than "
                    f'in the auxiliary prompt of contrast: write "{SENTENCE}" with a space on both sides'
                )
        return found

    @property
    def prompts(self) -> tuple[PromptIds, ...]:
        """The templates as token ids."""
        return self._texts.prompts

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Clean texts for the prompt and return their content ids."""
        sentences = [join_words(text) for text in texts]
        if self.reading.prompt.quoted:
            sentences = [clean_sentence(sentence) for sentence in sentences]
        return self._texts.tokenize(sentences)

    def rows(self, contents: Sequence[Ids]) -> list[PromptRow]:
        """Pair every sentence with every prompt, sentence by sentence."""
        return [PromptRow(prompt, content) for content in contents for prompt in range(len(self.prompts))]

    def length(self, content: int) -> int:
        """Return the length of the longest prompt around ``content`` tokens, the auxiliary one included."""
        longest = max(prompt.length(content) for prompt in self.prompts)
        return longest if self.auxiliary is None else max(longest, self.auxiliary.length(content))

    def knows(self, token_id: int) -> bool:
        """Check whether the model embeds a token."""
        return 0 <= token_id < self.decoder.rows or token_id == self.placeholder_id

    @cached_property
    def placeholder(self) -> torch.Tensor | None:
        """The placeholder's vector if the embedding has no row for it, drawn with a fixed seed.

        It is normally distributed, with the mean norm of embedded tokens; any other vector works as well (Fu
        et al., table 4).
        """
        if not self._outside:
            return None
        rows, device = self.decoder.rows, self.decoder.device
        sampled = torch.arange(0, rows, max(1, rows // _SAMPLED_ROWS), device=device)
        with torch.inference_mode():
            scale = self.decoder.embedding(sampled).float().square().mean().sqrt().item()
            size = self.decoder.embedding(sampled[:1]).shape[-1]
        drawn = np.random.default_rng(_PLACEHOLDER_SEED).standard_normal(size, dtype=np.float32)
        return torch.from_numpy(drawn * np.float32(scale))

    def forget(self) -> None:
        """Draw the placeholder's vector again, since its norm depends on the weights."""
        vars(self).pop("placeholder", None)
        if self.auxiliary is not None:
            self.auxiliary.forget()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids, shape (rows, tokens, d)."""
        vector = self.placeholder
        if vector is None:
            embedded: torch.Tensor = self.decoder.embedding(ids)
            return embedded
        placed = torch.eq(ids, self.placeholder_id or 0)
        embedded = self.decoder.embedding(ids.masked_fill(placed, 0))
        return torch.where(placed[..., None], vector.to(embedded), embedded)

    def beside(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return further inputs computed from ids; a placeholder without a row gets those of token 0."""
        return self.decoder.beside(ids.masked_fill(ids >= self.decoder.rows, 0))

    def layout(self, rows: Sequence[PromptRow], *, skipping: bool = False) -> PromptLayout:
        """Fill prompts and return them as index tensors on the CPU, padded on the left."""
        filled, past = [], []
        for row in rows:
            prompt = self.prompts[row.prompt]
            skipped = prompt.fixed if skipping else 0
            filled.append(prompt.fill(row.content)[skipped:])
            past.append(skipped)
        width = max(map(len, filled))
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        slots = torch.zeros((3, len(rows)), dtype=torch.long)
        for place, (row, tokens) in enumerate(zip(rows, filled, strict=True)):
            offset = width - len(tokens)
            ids[place, offset:] = torch.tensor(tokens, dtype=torch.long)
            mask[place, offset:] = 1
            prompt, moved = self.prompts[row.prompt], offset - past[place]
            first, last = prompt.pooled(len(row.content))
            found = 0 if prompt.place is None else prompt.place % prompt.length(len(row.content))
            slots[:, place] = torch.tensor([first + moved, last + moved, found + moved])
        before = torch.tensor(past)[:, None]
        positions = (mask.cumsum(1) - 1).clamp(min=0) + before
        return PromptLayout(ids, mask, positions, slots)

    def batch(
        self,
        layout: PromptLayout,
        past: torch.Tensor | None = None,
        auxiliary: torch.Tensor | None = None,
    ) -> PromptBatch:
        """Move a layout to the model's device and embed it."""
        device = self.decoder.device
        ids, mask, positions, slots = (part.to(device) for part in layout)
        first, last, places = slots
        return PromptBatch(
            embeddings=self.embed(ids),
            mask=mask if past is None else torch.cat([past.to(device), mask], dim=1),
            positions=positions,
            first=first,
            last=last,
            places=places if self.reading.prepending is not None else None,
            echoes=self.reading.prompt.echoes,
            beside=self.beside(ids),
            subtraction=None if auxiliary is None else self.subtraction(auxiliary),
        )

    def attended(self, batch: PromptBatch, cache: Any = None) -> torch.Tensor:
        """Return what the last tokens have attended to in the last layer that runs; see `attended_values`."""
        return attended_values(self.decoder, batch, self.number - 1, cache)

    def subtraction(self, auxiliary: torch.Tensor) -> Subtraction | None:
        """Return how values of the auxiliary prompts are subtracted; None without contrast."""
        contrast = self.reading.contrast
        if contrast is None:
            return None
        by_head = contrast.rule is ContrastRule.SUB_HEAD_NORM
        heads = attention_heads(self.decoder, auxiliary.shape[-1]) if by_head else 1
        return Subtraction(contrast, heads, auxiliary)


class PromptLayout(NamedTuple):
    """Index tensors of filled prompts.

    Attributes:
        ids: token ids, shape (rows, tokens).
        mask: 1 for a token, 0 for padding.
        positions: positions, not counting padding.
        slots: indices of the first pooled token, the last one and the placeholder, shape (3, rows).
    """

    ids: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class FixedBeginnings:
    """The tokens of each prompt before the placeholder or the sentence.

    Later tokens do not change their states, and overwriting starts after them: reuse is exact up to rounding.
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
