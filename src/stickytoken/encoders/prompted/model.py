"""A decoder, its tokenizer and a prompt: from sentences to the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from stickytoken.encoders.prompted._cleaning import clean_sentence, join_words
from stickytoken.encoders.prompted._decoder import Decoder, find_decoder
from stickytoken.encoders.prompted._prompt_ids import Ids, PromptIds, PromptTokenizer
from stickytoken.encoders.prompted._tokenizers import PromptTokenizers
from stickytoken.encoders.prompted.layer_states import PromptBatch
from stickytoken.encoders.prompted.prompts import Prompt
from stickytoken.encoders.prompted.token_prepending import TokenPrepending
from stickytoken.errors import InputError

_PLACEHOLDER_SEED = 0
# Rows of the embedding sampled for the norm of the placeholder's vector.
_SAMPLED_ROWS = 1024


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
    """

    prompt: Prompt
    prepending: TokenPrepending | None
    layer: int

    def __post_init__(self) -> None:
        if self.prompt.echoes and self.prepending is not None:
            raise InputError(
                "an echo prompt already shows the whole sentence to every token: leave out token prepending"
            )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a prompt that lead to this reading, without presets."""
        span = self.prepending
        return {
            "prompt": self.prompt.source,
            "token_prepending": span is not None,
            "start": None if span is None else span.start,
            "exit": None if span is None else span.exit,
            "layer": self.layer,
        }


class PromptedModel:
    """A prompted language model. The model and its tokenizer are not changed.

    Args:
        model: a decoder-only transformers model, with or without a head, or the decoder found in it.
        tokenizer: its transformers tokenizer.
        name: name of the model in messages.
        reading: prompt, token prepending and layer.
        tokenizers: copies of the tokenizer that another reading of the model made; None makes them.

    Raises:
        ModelError: The model is not decoder-only, or its tokenizer cannot be used.
        InputError: The layer does not exist.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        tokenizers: PromptTokenizers | None = None,
    ) -> None:
        self.decoder = model if isinstance(model, Decoder) else find_decoder(model, name)
        self.reading = reading
        self.number = self.decoder.layer_number(reading.layer)
        tokenizers = PromptTokenizers(tokenizer, name) if tokenizers is None else tokenizers
        prepending = reading.prepending
        if prepending is not None:
            prepending.require_layers(len(self.decoder.layers), name)
        own = tokenizers.plain if prepending is None else tokenizers.prepending
        self.padding_id = own.padding_id
        self.placeholder_id = own.placeholder_id
        self._texts = PromptTokenizer(
            own.tokenizer, own.special, reading.prompt, prepending=prepending is not None
        )
        # If the matrix has a row for the placeholder, that row is its vector, as in the published code.
        self._outside = self.placeholder_id is not None and self.placeholder_id >= self.decoder.rows

    @property
    def prompts(self) -> tuple[PromptIds, ...]:
        """The templates as token ids."""
        return self._texts.prompts

    def tokenize(self, texts: Sequence[str]) -> list[Any]:
        """Clean texts for the prompt and return their content ids, a list of `TokenizedText`."""
        sentences = [join_words(text) for text in texts]
        if self.reading.prompt.quoted:
            sentences = [clean_sentence(sentence) for sentence in sentences]
        return self._texts.tokenize(sentences)

    def rows(self, contents: Sequence[Ids]) -> list[PromptRow]:
        """Pair every sentence with every prompt, sentence by sentence."""
        return [PromptRow(prompt, content) for content in contents for prompt in range(len(self.prompts))]

    def length(self, content: int) -> int:
        """Return the length of the longest prompt around ``content`` tokens."""
        return max(prompt.length(content) for prompt in self.prompts)

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

    def layout(
        self, rows: Sequence[PromptRow], *, skipping: bool = False, right: bool = False
    ) -> PromptLayout:
        """Fill prompts and return them as padded index tensors on the CPU.

        Args:
            rows: sentences and their prompts.
            skipping: leave out the fixed beginnings, whose keys and values are cached.
            right: pad on the right instead of the left.
        """
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
            offset = 0 if right else width - len(tokens)
            ids[place, offset : offset + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            mask[place, offset : offset + len(tokens)] = 1
            prompt, moved = self.prompts[row.prompt], offset - past[place]
            first, last = prompt.pooled(len(row.content))
            found = 0 if prompt.place is None else prompt.place % prompt.length(len(row.content))
            slots[:, place] = torch.tensor([first + moved, last + moved, found + moved])
        before = torch.tensor(past)[:, None]
        positions = (mask.cumsum(1) - 1).clamp(min=0) + before
        return PromptLayout(ids, mask, positions, slots)

    def batch(self, layout: PromptLayout, past: torch.Tensor | None = None) -> PromptBatch:
        """Move a layout to the model's device and embed it.

        Args:
            layout: filled prompts.
            past: mask of the cached tokens before them, shape (rows, past).
        """
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
        )


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
