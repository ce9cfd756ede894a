"""Turn sentences into the inputs of a decoder, with the decoder's tokenizer and a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from stickytoken.encoders.inputs.lengths import NO_LIMIT, readable_positions
from stickytoken.errors import InputError
from stickytoken.insertion import TokenizedText
from stickytoken.language_models.prompts import clean_sentence
from stickytoken.language_models.reading import Reading
from stickytoken.language_models.running.decoder import Decoder
from stickytoken.language_models.running.steering import PromptBatch, pool_states
from stickytoken.language_models.running.tokenization import Ids, OwnTokenizer, PromptTokenizer

# Number of embedding rows that are sampled to determine the norm of the placeholder's vector.
_SAMPLED_ROWS = 1024


class PromptRow(NamedTuple):
    """One sentence in one prompt.

    Attributes:
        prompt: index of the prompt.
        content: token ids of the sentence in the prompt.
    """

    prompt: int
    content: Ids


Features: TypeAlias = dict[str, Any]
# Keys of the features that describe filled prompts; see `PromptedModel.layout`.
_LAYOUT = ("input_ids", "attention_mask", "position_ids", "prompt_slots")


class PromptedModel:
    """A decoder with a prompt around every sentence.

    Attributes:
        layers_run: number of layers that run; vectors are read after the last of them.
        prompts: the ids of each template.
    """

    def __init__(self, decoder: Decoder, reading: Reading, tokenizer: OwnTokenizer) -> None:
        """Find the token ids of the prompts, and check that the decoder supports the settings in ``reading``.

        Args:
            decoder: the language model.
            reading: the settings: prompt, token prepending and layer.
            tokenizer: a copy of the model's tokenizer.

        Raises:
            InputError: the decoder has too few layers for the settings, or its tokenizer does not suit the
                prompt.
            ModelError: the tokenizer does not suit the prompt.
        """
        self.decoder = decoder
        self.reading = reading
        self.layers_run = decoder.count_layers_until(reading.layer)
        self.placeholder_id = tokenizer.placeholder_id
        prepending = reading.prepending
        existing_layers = len(decoder.layers)
        if prepending is not None and prepending.start >= existing_layers:
            raise InputError(
                f"start is {prepending.start}, but {decoder.name} has {existing_layers} layers: pass 0 to "
                f"{existing_layers - 1}"
            )
        if prepending is not None and prepending.start >= self.layers_run:
            raise InputError(
                f"token prepending starts before layer {prepending.start}, counted from 0, but vectors of "
                f"{decoder.name} are read after {self.layers_run} layers, so no copied state would reach "
                f"them: pass a start of 0 to {self.layers_run - 1}, or read the vectors after a later layer"
            )
        self._prompt_tokenizer = PromptTokenizer(
            tokenizer.tokenizer, tokenizer.special, reading.prompt, prepending=prepending is not None
        )
        self.prompts = self._prompt_tokenizer.prompts

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the token ids of each sentence inside the prompt, grouped by word.

        Sentences are cleaned first if the prompt quotes them.
        """
        sentences = [" ".join(text.split()) for text in texts]
        if self.reading.prompt.quoted:
            sentences = [clean_sentence(sentence) for sentence in sentences]
        return self._prompt_tokenizer.tokenize(sentences)

    def rows(self, contents: Sequence[Ids]) -> list[PromptRow]:
        """Return a row for every sentence in every prompt; the rows of a sentence are adjacent."""
        return [PromptRow(prompt, content) for content in contents for prompt in range(len(self.prompts))]

    def length(self, content_length: int) -> int:
        """Return the length of the longest prompt, filled with a sentence of ``content_length`` tokens."""
        return max(prompt.length(content_length) for prompt in self.prompts)

    def find_max_length(self, tokenizer: Any, requested: int | None = None) -> int | None:
        """Return the maximum number of tokens of a filled prompt; None if there is no limit.

        Args:
            tokenizer: the tokenizer of the user's model, which may declare a limit.
            requested: maximum number of tokens that the user requests; if None, the model's own limit.

        Raises:
            InputError: the prompt leaves no room for a text, or ``requested`` is more than the positions.
        """
        name = self.decoder.name
        # Raises an error if ``requested`` is more than the model's number of positions.
        positions = readable_positions(self.decoder.model, requested, name)
        tokenizer_limit = getattr(tokenizer, "model_max_length", None)
        # A tokenizer without a limit declares a huge number.
        limits = [limit for limit in (tokenizer_limit, positions) if limit is not None and limit < NO_LIMIT]
        longest = min(limits, default=None) if requested is None else requested
        if longest is None:
            return None
        prompt_length = self.length(content_length=0)
        if longest <= prompt_length:
            raise InputError(
                f"{name!r} reads {longest} tokens, but the prompt alone takes {prompt_length}: use a "
                "shorter prompt"
            )
        return int(longest)

    def knows(self, token_id: int) -> bool:
        """Return whether a token id has an embedding or is the placeholder."""
        return 0 <= token_id < self.decoder.rows or token_id == self.placeholder_id

    @cached_property
    def placeholder(self) -> torch.Tensor | None:
        """The placeholder's vector; None if the embedding has a row for it, or there is no placeholder."""
        rows = self.decoder.rows
        if self.placeholder_id is None or self.placeholder_id < rows:
            return None  # the embedding's row for the placeholder is used, as in the published code
        step = max(1, rows // _SAMPLED_ROWS)
        sampled_ids = torch.arange(0, rows, step, device=self.decoder.device)
        with torch.inference_mode():
            sampled_rows = self.decoder.embedding(sampled_ids)
            root_mean_square = sampled_rows.float().square().mean().sqrt().item()
        # A random vector with the same root mean square as the embeddings; the choice of vector matters
        # little (Fu et al., table 4).
        direction = np.random.default_rng(0).standard_normal(sampled_rows.shape[-1], dtype=np.float32)
        return torch.from_numpy(direction * np.float32(root_mean_square))

    def forget_derived_values(self) -> None:
        """Drop the cached values that were computed from the weights."""
        vars(self).pop("placeholder", None)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of token ids; the placeholder gets its own vector."""
        own_vector = self.placeholder
        if own_vector is None or self.placeholder_id is None:
            embedded: torch.Tensor = self.decoder.embedding(ids)
            return embedded
        is_placeholder = torch.eq(ids, self.placeholder_id)
        # The placeholder has no embedding, so the embedding of token 0 is looked up for it and then replaced.
        embedded = self.decoder.embedding(ids.masked_fill(is_placeholder, 0))
        return torch.where(is_placeholder[..., None], own_vector.to(embedded), embedded)

    def layout(self, rows: Sequence[PromptRow], *, skipping: bool = False) -> Features:
        """Return filled prompts as features, padded at the start.

        Args:
            rows: the sentences and the prompts to fill with them.
            skipping: whether to leave out the tokens at the start of each prompt whose states are cached; see
                `PromptIds.prefix_length`.

        Returns:
            Tensors, keyed by the names in `_LAYOUT`. Token ids, masks (0 for padding) and positions have the
            shape (rows, tokens). Indices have the shape (rows, 3), and are the indices of the first pooled
            token, of the last pooled token and of the placeholder. In a prompt without a placeholder, the
            index of the placeholder has no meaning.
        """
        filled: list[Ids] = []
        skipped_counts: list[int] = []
        indices_from_end: list[list[int]] = []
        for prompt_index, content in rows:
            prompt = self.prompts[prompt_index]
            length = prompt.length(len(content))
            skipped = prompt.prefix_length if skipping else 0
            filled.append(prompt.fill(content)[skipped:])
            skipped_counts.append(skipped)
            first, last = prompt.find_pooled_ends(len(content))
            # A negative placeholder index is counted from the end. The modulo gives the index from the start,
            # for example -2 % 5 = 3. Without a placeholder, the index is not used, and set to 0.
            placeholder = 0 if prompt.placeholder is None else prompt.placeholder % length
            # Padding and cached tokens are at the start, so indices counted from the end remain valid: in a
            # prompt of 5 tokens, index 3 becomes -2.
            indices_from_end.append([first - length, last - length, placeholder - length])
        return _pad_at_start(filled, skipped_counts, indices_from_end)

    def batch(self, layout: Features, cached_mask: torch.Tensor | None = None) -> PromptBatch:
        """Return a batch of filled prompts on the decoder's device.

        Args:
            layout: tensors of filled prompts, as returned by the `layout` method.
            cached_mask: mask of the tokens that are left out because a cache holds them, shape (rows, cached
                tokens); None without a cache.
        """
        ids, mask, positions, indices = (layout[key].to(self.decoder.device) for key in _LAYOUT)
        first, last, placeholders = indices.unbind(dim=1)
        if cached_mask is not None:  # attention also reads the cached tokens, which come first in a row
            mask = torch.cat([cached_mask.to(self.decoder.device), mask], dim=1)
        # The id of the placeholder may be beyond the embedding matrix. `embed` gives the placeholder a vector
        # of its own. The per-layer inputs of the placeholder are those of token 0.
        ids_with_rows = ids.masked_fill(ids >= self.decoder.rows, 0)
        return PromptBatch(
            embeddings=self.embed(ids),
            mask=mask,
            positions=positions,
            first=first,
            last=last,
            placeholders=placeholders,
            echoes=self.reading.prompt.echoes,
            prepending=self.reading.prepending,
            per_layer_inputs=self.decoder.per_layer_inputs(ids_with_rows),
        )


def _pad_at_start(
    filled: Sequence[Ids], cached_counts: Sequence[int], indices_from_end: Sequence[Sequence[int]]
) -> Features:
    """Return filled prompts as features (see `PromptedModel.layout`), padded at the start to the same length.

    ``filled`` has the ids of each filled prompt, without the tokens at its start whose states are cached;
    ``cached_counts`` has the numbers of these tokens. ``indices_from_end`` has, for each prompt, the indices
    of the first pooled token, of the last pooled token and of the placeholder, counted from the end.
    """
    width = max(map(len, filled))
    padding_sizes = [width - len(row) for row in filled]
    padded_rows = [(0,) * padding + tuple(row) for padding, row in zip(padding_sizes, filled, strict=True)]
    mask_rows = [[0] * padding + [1] * (width - padding) for padding in padding_sizes]
    mask = torch.tensor(mask_rows, dtype=torch.long)
    # The position of a token is the number of cached and other tokens before it in its row. Padding gets the
    # position of the first token.
    positions = (mask.cumsum(1) - 1).clamp(min=0) + torch.tensor(cached_counts)[:, None]
    ids = torch.tensor(padded_rows, dtype=torch.long)
    indices = torch.tensor(indices_from_end) + width  # counted from the start of a padded row
    return dict(zip(_LAYOUT, (ids, mask, positions, indices), strict=True))


class PromptCache:
    """The cached states of each prompt's first tokens, which do not depend on the sentence.

    The first tokens are those before the placeholder or the sentence; see `PromptIds.prefix_length`.

    Attributes:
        mask: 1 for a cached token, 0 for padding, shape (prompts, cached tokens).
    """

    def __init__(self, model: PromptedModel, layer_counts: Sequence[int]) -> None:
        """Compute the states of each prompt's first tokens, and cache them.

        Args:
            model: the decoder with its prompts.
            layer_counts: numbers of layers after which vectors will be read; states are computed up to the
                largest of these numbers.
        """
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        # Classes of cache layers that hold only keys and values for each row.
        self._plain_kinds = (DynamicLayer, DynamicSlidingWindowLayer)
        prefixes = [prompt.before[: prompt.prefix_length] for prompt in model.prompts]
        # A batch needs three indices for each row: of two pooled tokens and of the placeholder. They have no
        # effect on the cache, so all three indices are those of the last token.
        indices_from_end = [[-1, -1, -1] for _ in prefixes]
        layout = _pad_at_start(prefixes, cached_counts=[0] * len(prefixes), indices_from_end=indices_from_end)
        # Token prepending is off, because it changes no states before the placeholder, and the cached tokens
        # come before the placeholder.
        batch = replace(model.batch(layout), prepending=None)
        self.mask = batch.mask
        self._cache: Any = DynamicCache(config=model.decoder.model.config)
        # The pooled states themselves are not needed: running the decoder fills the cache.
        pool_states(model.decoder, batch, layer_counts, self._cache)

    def for_prompts(self, prompts: torch.Tensor) -> Any:
        """Return a transformers cache with one row for each item of ``prompts``.

        Args:
            prompts: indices of prompts. A row holds the cached states of its prompt.
        """
        cache = copy.copy(self._cache)
        # Shallow copies are safe: a cache grows by allocating new tensors, and never writes to the existing
        # ones.
        cache.layers = [copy.copy(layer) for layer in self._cache.layers]
        is_plain = all(type(layer) in self._plain_kinds for layer in cache.layers)
        has_one_prompt = len(self.mask) == 1
        if not has_one_prompt or not is_plain:
            cache.batch_select_indices(prompts.to(self.mask.device))
            return cache
        # There is only one prompt, so all rows are views of a single row, which saves memory. Views work only
        # if the cache layers hold nothing but keys and values. Their shape is (rows, heads, tokens, d).
        for layer in cache.layers:
            if layer.get_seq_length():  # layers that did not run are empty
                layer.keys = layer.keys.expand(len(prompts), -1, -1, -1)
                layer.values = layer.values.expand(len(prompts), -1, -1, -1)
        return cache
