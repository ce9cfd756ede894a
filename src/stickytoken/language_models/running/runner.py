"""Run filled prompts through a model, and compute the states of common prefixes only once.

Two methods avoid repeated computation, and are exact up to rounding. `_PromptReuse` caches the states of
the tokens before the placeholder or the sentence, which are the same for all sentences. `_SentenceReuse`
computes a common prefix of several sentences once; this requires that no state depends on later tokens,
which excludes token prepending. Each method is first tested on a few inputs, and is used only if it leaves
their vectors unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import prefixes, weight_version
from stickytoken.encoders.compute.batches import BatchEngine
from stickytoken.language_models.running.decoder import compute_states_after
from stickytoken.language_models.running.model import PromptCache, PromptedModel, PromptRow
from stickytoken.language_models.running.steering import pool_states
from stickytoken.language_models.running.tokenization import Ids

_LOG = logging.getLogger(__name__)


class PromptRunner(BatchEngine):
    """Runs filled prompts through a model. The caller must turn on evaluation mode and inference mode."""

    unit = "prompt"

    def __init__(
        self,
        model: PromptedModel,
        token_budget: int | None,
        *,
        reuse: prefixes.ReuseLimits | None,
        rounding: float,
    ) -> None:
        """Prepare a runner.

        Args:
            model: the decoder with its prompts.
            token_budget: maximum number of tokens in a batch; if None, a number that suits the device.
            reuse: limits within which common prefixes are computed only once; if None, nothing is reused.
            rounding: machine epsilon of the arithmetic, for comparisons with vectors that are computed
                without reuse.
        """
        super().__init__(model.decoder.name, model.decoder)
        self._prompted = model
        if token_budget:
            self.token_budget = token_budget
        # `prompt_reuse` caches the states of the tokens before the sentence. `_sentence_reuse` computes the
        # states of a common prefix of several sentences once.
        self.prompt_reuse = None if reuse is None else _PromptReuse(self, model, reuse, rounding)
        self._sentence_reuse = None if reuse is None else _SentenceReuse(self, model, reuse, rounding)

    def vectors(self, contents: Sequence[Ids], layer_counts: Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors of sentences after each of ``layer_counts``, shape (sentences, layers, d).

        For a single layer count, common prefixes of the sentences are computed once if this saves enough.
        Otherwise, the cached start of each prompt is used if this saves enough; see the module's docstring.
        """
        rows = self._prompted.rows(contents)  # each sentence in each prompt
        prompt_reuse = self.prompt_reuse
        if prompt_reuse is not None and not prompt_reuse.pays_off(rows):
            prompt_reuse = None
        if self._sentence_reuse is not None and len(layer_counts) == 1:
            vectors = self._sentence_reuse.vectors_if_cheaper(
                contents, layer_counts[0], prompts_are_cached=prompt_reuse is not None
            )
            if vectors is not None:
                return vectors[:, None]  # shape (sentences, 1, d)
        cache = None if prompt_reuse is None else prompt_reuse.cache_for(layer_counts)
        row_vectors = self.run_rows(rows, cache, layer_counts)
        # With several prompts (MetaEOL), the vector is the unweighted mean over the prompts. The rows of a
        # sentence are adjacent, so that they become an axis: (sentences, prompts, layers, d).
        by_sentence = row_vectors.reshape(len(contents), -1, *row_vectors.shape[1:])
        means: NDArray[np.float32] = by_sentence.mean(axis=1)
        return means

    def run_rows(
        self,
        rows: Sequence[PromptRow],
        cache: PromptCache | None,
        layer_counts: Sequence[int],
    ) -> NDArray[np.float32]:
        """Compute rows in batches of equal length; return their pooled states, shape (rows, layers, d).

        Args:
            rows: the sentences and the prompts to fill with them.
            cache: the cached states of the prompts; if None, whole prompts are computed.
            layer_counts: numbers of layers; the states after each of these numbers of layers are returned.
        """
        prompts = self._prompted.prompts
        lengths = []
        for row in rows:
            prompt = prompts[row.prompt]
            skipped = 0 if cache is None else prompt.prefix_length
            lengths.append(prompt.length(len(row.content)) - skipped)

        def compute(batch: NDArray[np.intp]) -> torch.Tensor:
            return self.forward([rows[row] for row in batch], cache, layer_counts)

        return self.run(lengths, compute)

    def forward(
        self,
        rows: Sequence[PromptRow],
        cache: PromptCache | None,
        layer_counts: Sequence[int],
    ) -> torch.Tensor:
        """Run one batch of rows.

        Args:
            rows: sentences and prompts; all rows have the same length.
            cache: the cached states of the prompts; if None, whole prompts are computed.
            layer_counts: numbers of layers; the states after each of these numbers of layers are returned.

        Returns:
            Pooled states, shape (rows, layers, d).
        """
        model = self._prompted
        cached_mask = None
        row_cache = None
        if cache is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=cache.mask.device)
            cached_mask = cache.mask[prompts]
            row_cache = cache.for_prompts(prompts)
        # The tokens whose states are cached are not computed again.
        layout = model.layout(rows, skipping=cache is not None)
        batch = model.batch(layout, cached_mask)
        return pool_states(model.decoder, batch, layer_counts, row_cache).float()


@dataclass(eq=False)
class _Reuse:
    """Base class of `_PromptReuse` and `_SentenceReuse`; see `PromptRunner` for the fields."""

    runner: PromptRunner
    prompted: PromptedModel
    limits: prefixes.ReuseLimits
    rounding: float


@dataclass(eq=False)
class _PromptReuse(_Reuse):
    """Caches the states at the start of each prompt, until the weights or the requested layers change."""

    _cache: PromptCache | None = field(default=None, init=False)
    # The numbers of layers and the versions of all weights for which the cache was computed.
    _cached_for: tuple[list[int], list[tuple[int, int]]] | None = field(default=None, init=False)

    def pays_off(self, rows: Sequence[PromptRow]) -> bool:
        """Return whether cached states save enough tokens of these rows, and leave vectors unchanged."""
        prompts = self.prompted.prompts
        if len(rows) < self.limits.rows * len(prompts):  # too few rows to make up for computing the cache
            return False
        cached_tokens = sum(prompts[row.prompt].prefix_length for row in rows)
        all_tokens = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
        return cached_tokens >= self.limits.fixed_share * all_tokens and self.agrees

    @cached_property
    def agrees(self) -> bool:
        """Whether vectors from cached states are the same as without a cache, tried on three sentences.

        They are wrong if the model's state consists of more than keys and values.
        """
        # The first two sentences have the same length, so they are computed in one batch. A batch with two
        # sentences reveals a model whose cached state cannot be repeated for several rows.
        contents = [text.ids for text in self.prompted.tokenize(["a", "a", "one two three"])]
        rows = self.prompted.rows(contents)
        layer_counts = [self.prompted.layers_run]
        plain = self.runner.run_rows(rows, None, layer_counts)
        try:
            reused = self.runner.run_rows(rows, PromptCache(self.prompted, layer_counts), layer_counts)
        except torch.OutOfMemoryError:  # a RuntimeError that says nothing about the model
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            # The code of the model does not take the cache.
            _LOG.warning("%s: continuing without reuse of prompt beginnings (%s)", self.runner.name, error)
            return False
        return prefixes.agree(reused, plain, self.rounding)

    def cache_for(self, layer_counts: Sequence[int]) -> PromptCache:
        """Return the cached states of the prompts, computed anew if the weights or ``layer_counts`` have
        changed.

        A change of a weight that `weight_version` doesn't show, such as a change in ``weight.data``, isn't
        noticed.
        """
        weight_versions = [weight_version(weight) for weight in self.prompted.decoder.model.parameters()]
        wanted_for = (list(layer_counts), weight_versions)
        if self._cache is None or self._cached_for != wanted_for:
            self._cache = PromptCache(self.prompted, layer_counts)
            self._cached_for = wanted_for
        return self._cache


@dataclass(eq=False)
class _SentenceReuse(_Reuse):
    """Computes common prefixes of sentences once per prompt, if the vector is the last token's state."""

    # What computes common prefixes, keyed by the index of the prompt and the number of layers.
    _by_prompt: dict[tuple[int, int], prefixes.PrefixReuse] = field(default_factory=dict, init=False)

    def vectors_if_cheaper(
        self, contents: Sequence[Ids], layer_count: int, *, prompts_are_cached: bool
    ) -> NDArray[np.float32] | None:
        """Return the vectors of sentences, shape (sentences, d).

        Return None if reuse saves too little or isn't exact.
        """
        if not self._reuse_is_exact:
            return None
        vectors_in_prompts = []
        for index, prompt in enumerate(self.prompted.prompts):
            # Number of tokens of each row that `_PromptReuse` would skip, if it were used instead.
            cached = prompt.prefix_length if prompts_are_cached else 0
            vectors = self._find_prefix_reuse(index, layer_count).vectors_if_cheaper(contents, cached)
            if vectors is None:
                # The mean needs the vectors in all prompts. The vectors in earlier prompts are dropped, and
                # the caller computes the vectors in all prompts without reuse.
                return None
            vectors_in_prompts.append(vectors)
        # The mean over all prompts.
        means: NDArray[np.float32] = np.add.reduce(vectors_in_prompts) / np.float32(len(vectors_in_prompts))
        return means

    @property
    def _reuse_is_exact(self) -> bool:
        """Whether no state depends on later tokens."""
        model = self.prompted
        reading = model.reading
        reads_last_state = not reading.prompt.echoes
        return reading.prepending is None and reads_last_state and prefixes.is_known_kind(model.decoder.model)

    def _find_prefix_reuse(self, prompt_index: int, layer_count: int) -> prefixes.PrefixReuse:
        """Return the object that computes common prefixes of sentences in one prompt.

        There is one object for each prompt and number of layers, which is created on the first call.
        """
        if (prompt_index, layer_count) not in self._by_prompt:
            decoder = self.prompted.decoder
            prompt = self.prompted.prompts[prompt_index]
            # Before prefixes are reused, the vectors of samples are compared with those of
            # `_compute_plain_vectors`. The samples are ``one two three`` with one to three copies of the
            # token ``a`` before or after it.
            carrier, copied = (text.ids for text in self.prompted.tokenize(["one two three", "a"]))
            samples = prefixes.samples_with_copies(carrier, tokens=copied[:1])

            def states_of(inputs: dict[str, Any]) -> torch.Tensor:
                return compute_states_after(decoder, [layer_count], inputs)[layer_count]

            def vectors_of_last_tokens(last_states: torch.Tensor) -> torch.Tensor:
                return last_states[:, 0]  # (n, 1, d) becomes (n, d)

            self._by_prompt[prompt_index, layer_count] = prefixes.PrefixReuse(
                decoder.model,
                prompt.before,
                prompt.after,
                states_of=states_of,
                vectors_of_states=vectors_of_last_tokens,
                engine=self.runner,
                limits=self.limits,
                samples=samples,
                plain_vectors=partial(self._compute_plain_vectors, prompt_index, layer_count),
                rounding=self.rounding,
            )
        return self._by_prompt[prompt_index, layer_count]

    def _compute_plain_vectors(
        self, prompt_index: int, layer_count: int, contents: Sequence[Ids]
    ) -> NDArray[np.float32]:
        # Returns the vectors of sentences in one prompt without reuse, shape (sentences, d).
        rows = [PromptRow(prompt_index, content) for content in contents]
        return self.runner.run_rows(rows, None, [layer_count])[:, 0]
