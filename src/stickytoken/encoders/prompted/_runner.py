"""Run sentences through a prompted model in batches, and compute shared beginnings once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.model_state import weight_mark
from stickytoken.encoders.prefixes.reuse import REUSE, PrefixReuse, ReuseLimits, TreeModel, agree, known_kind
from stickytoken.encoders.prompted._fixed_beginning import FixedBeginnings
from stickytoken.encoders.prompted._prompt_ids import Ids, PromptIds
from stickytoken.encoders.prompted.layer_states import (
    PromptBatch,
    pooled_states,
    states_after,
)
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow
from stickytoken.errors import EncodingError

_LOG = logging.getLogger(__name__)
# With a 12-layer Qwen2 of width 384 on one core, larger batches outgrow the cache: up to 25% slower.
_TOKEN_BUDGET = {"cpu": 1024}
_ACCELERATOR_TOKEN_BUDGET = 65536


class PromptRunner:
    """Run filled prompts through a model, which must be in inference and evaluation mode.

    Work is shared in two ways, both exact up to rounding. Keys and values of the tokens before the
    placeholder or the sentence are computed once for all sentences. Without overwriting, a state does not
    depend on later tokens, so sentences with a common beginning share it too, as a tree.

    With contrast, the auxiliary prompts of all sentences run first, through a runner of their own, up to the
    layer of contrast.

    Args:
        model: the model and its prompts.
        name: name of the model in messages.
        token_budget: tokens per batch; None chooses by device.
        reuse: when to compute common beginnings once; None is never.
        rounding: machine epsilon of the model's arithmetic.
    """

    def __init__(
        self,
        model: PromptedModel,
        name: str,
        token_budget: int | None,
        *,
        reuse: ReuseLimits | None,
        rounding: float,
    ) -> None:
        self._prompted = model
        self._name = name
        self._device = model.decoder.device
        self.token_budget = token_budget or _TOKEN_BUDGET.get(self._device.type, _ACCELERATOR_TOKEN_BUDGET)
        self.reuse = reuse
        self._rounding = rounding
        self._memory_for_trees = True
        self._made: tuple[list[tuple[int, ...]], FixedBeginnings] | None = None
        self._auxiliary = (
            None
            if model.auxiliary is None
            else AuxiliaryRunner(model.auxiliary, name, token_budget, reuse=reuse, rounding=rounding)
        )

    def vectors(self, contents: Sequence[Ids], numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return vectors of sentences after the given numbers of layers, shape (n, numbers, d).

        Args:
            contents: content ids of each sentence; at least one.
            numbers: layer counts from 1, distinct.
        """
        rows = self._prompted.rows(contents)
        known = self._shares_beginnings(rows)
        if len(numbers) == 1 and (found := self._by_trees(contents, numbers[0], known=known)) is not None:
            return found
        auxiliary = None if self._auxiliary is None else self._auxiliary.values(contents)
        found = self._by_batches(rows, self._beginnings(numbers) if known else None, numbers, auxiliary)
        # MetaEOL: the plain mean over its prompts.
        means: NDArray[np.float32] = found.reshape(len(contents), -1, *found.shape[1:]).mean(axis=1)
        return means

    def forward(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        numbers: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Run one batch, shape (rows, numbers, d).

        Args:
            rows: filled prompts.
            beginnings: keys and values of their beginnings; None computes them.
            numbers: layer counts.
            auxiliary: what contrast subtracts from each row; None subtracts nothing.
        """
        past = cache = None
        if beginnings is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=beginnings.mask.device)
            past, cache = beginnings.mask[prompts], beginnings.cache(prompts)
        layout = self._prompted.layout(rows, skipping=beginnings is not None)
        values = None if auxiliary is None else torch.from_numpy(auxiliary)
        states = self._read(self._prompted.batch(layout, past, values), numbers, cache)
        array: NDArray[np.float32] = states.float().cpu().numpy()
        return array

    def _read(self, batch: PromptBatch, numbers: Sequence[int], cache: Any) -> torch.Tensor:
        prepending = self._prompted.reading.prepending
        return pooled_states(self._prompted.decoder, batch, numbers, prepending, cache)

    def _by_batches(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        numbers: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        prompts, known = self._prompted.prompts, beginnings is not None
        lengths = [
            prompts[row.prompt].length(len(row.content)) - (prompts[row.prompt].fixed if known else 0)
            for row in rows
        ]
        batches = equal_length_batches(lengths, self.token_budget)[::-1]
        vectors: NDArray[np.float32] | None = None
        while batches:
            batch = batches.pop()
            # Rows of one sentence, in every prompt, share what is subtracted.
            own = None if auxiliary is None else auxiliary[batch // len(prompts)]
            try:
                found = self.forward([rows[place] for place in batch], beginnings, numbers, own)
            except torch.OutOfMemoryError as error:
                self._shrink(len(batch), lengths[batch[0]], error)
                batches.extend(np.array_split(batch, 2)[::-1])
                continue
            if vectors is None:
                vectors = np.empty((len(rows), *found.shape[1:]), dtype=np.float32)
            vectors[batch] = found
        return np.empty((0, len(numbers), 0), np.float32) if vectors is None else vectors

    def _shrink(self, rows: int, length: int, error: torch.OutOfMemoryError) -> None:
        if rows == 1:
            raise EncodingError(
                f"{self._name}: {self._device} ran out of memory on a prompt of {length} tokens: "
                "use shorter sentences, a lower precision or another device"
            ) from error
        self.token_budget = max(1, rows * length // 2)
        torch.cuda.empty_cache()
        _LOG.warning("%s: out of memory on %s, continuing with smaller batches", self._name, self._device)

    # Fixed beginnings of prompts.

    def _shares_beginnings(self, rows: Sequence[PromptRow]) -> bool:
        prompts = self._prompted.prompts
        if self.reuse is None or len(rows) < self.reuse.rows * len(prompts):
            return False
        fixed = sum(prompts[row.prompt].fixed for row in rows)
        whole = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
        return fixed >= self.reuse.fixed_share * whole and self._beginnings_agree

    def _beginnings(self, numbers: Sequence[int]) -> FixedBeginnings:
        """Return the beginnings, reusing those of the last call if layers and weights are the same."""
        made_for = [tuple(numbers), *map(weight_mark, self._prompted.decoder.model.parameters())]
        if self._made is None or self._made[0] != made_for:
            self._made = made_for, FixedBeginnings(self._prompted, numbers)
        return self._made[1]

    @cached_property
    def _beginnings_agree(self) -> bool:
        """Whether reuse gives the vectors of the plain path; a model may cache more than keys and values."""
        rows = self._prompted.rows([text.ids for text in self._prompted.tokenize(["a", "one two three"])])
        numbers = [self._prompted.number]
        plain = self._by_batches(rows, None, numbers)
        try:
            found = self._by_batches(rows, FixedBeginnings(self._prompted, numbers), numbers)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            _LOG.warning("%s: continuing without reuse of prompt beginnings (%s)", self._name, error)
            return False
        return agree(found, plain, self._rounding)

    # Common beginnings of sentences.

    def _by_trees(self, contents: Sequence[Ids], number: int, *, known: bool) -> NDArray[np.float32] | None:
        """Return vectors of sentences with common beginnings, shape (n, 1, d); None if that saves little."""
        prompts = self._prompted.prompts
        if self.reuse is None or not self._memory_for_trees or not self._reads_alike:
            return None
        found: NDArray[np.float32] | None = None
        for prompt in prompts:
            reuse = self._prefix_reuse(prompt, number)
            roots = reuse.trees(contents, prompt.fixed if known else 0)
            if roots is None or not self._trees_agree:
                return None
            try:
                vectors = reuse.vectors(roots, len(contents))
            except torch.OutOfMemoryError:
                # Keys and values take extra memory, which the plain path does not need.
                self._memory_for_trees = False
                _LOG.warning("%s: out of memory on %s, continuing without reuse", self._name, self._device)
                return None
            found = vectors if found is None else found + vectors
        return None if found is None else (found / np.float32(len(prompts)))[:, None]

    @property
    def _reads_alike(self) -> bool:
        """Whether a state depends on the tokens before it alone, and the last token is read."""
        reading = self._prompted.reading
        return (
            reading.prepending is None
            and reading.contrast is None
            and not reading.prompt.echoes
            and known_kind(self._prompted.decoder.model)
        )

    def _prefix_reuse(self, prompt: PromptIds, number: int) -> PrefixReuse:
        decoder = self._prompted.decoder
        model = TreeModel(
            decoder.model,
            prompt.before,
            prompt.after,
            states=lambda inputs: states_after(decoder, [number], inputs)[number],
            finish=lambda picked: picked[:, 0],
        )
        return PrefixReuse(model, self.token_budget, self.reuse or REUSE)

    @cached_property
    def _trees_agree(self) -> bool:
        """Whether trees give the vectors of the plain path on a few sentences."""
        carrier, other = (text.ids for text in self._prompted.tokenize(["one two three", "a"]))
        contents = [
            *((*carrier, *other[:1] * count) for count in (1, 2, 3)),
            *((*other[:1] * count, *carrier) for count in (1, 2, 3)),
        ]
        number, prompts = self._prompted.number, self._prompted.prompts
        reuse = self._prefix_reuse(prompts[0], number)
        roots = reuse.trees(contents)
        if roots is None:
            return False
        rows = [PromptRow(0, content) for content in contents]
        plain = self._by_batches(rows, None, [number])[:, 0]
        return agree(reuse.vectors(roots, len(contents)), plain, self._rounding)


class AuxiliaryRunner(PromptRunner):
    """Run auxiliary prompts up to the layer of contrast; see `PromptRunner`."""

    def values(self, contents: Sequence[Ids]) -> NDArray[np.float32]:
        """Return what the last token of each auxiliary prompt has attended to, shape (n, heads * size)."""
        rows, number = self._prompted.rows(contents), self._prompted.number
        beginnings = self._beginnings([number]) if self._shares_beginnings(rows) else None
        return self._by_batches(rows, beginnings, [number])[:, 0]

    def _read(self, batch: PromptBatch, numbers: Sequence[int], cache: Any) -> torch.Tensor:
        return self._prompted.attended(batch, cache)[:, None]
