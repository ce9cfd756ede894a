"""Run filled prompts through a model, and share the work that prompts and sentences have in common.

Work is shared in two ways, both exact up to rounding. `_SharedBeginnings` computes the tokens before the
placeholder or the sentence once for all sentences. `_SentenceTrees` computes common prefixes of sentences
once; this requires that no state depends on later tokens, which excludes token prepending. Each method is
first tested on a few inputs, against vectors computed without sharing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import prefixes, weight_mark
from stickytoken.encoders.compute.batches import BatchEngine
from stickytoken.encoders.prompted.decoder import states_after
from stickytoken.encoders.prompted.model import FixedBeginnings, PromptedModel, PromptRow
from stickytoken.encoders.prompted.steering import pooled_states
from stickytoken.encoders.prompted.tokenization import Ids

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
        """Prepare a runner, and a second one for the auxiliary prompt if there is one.

        Args:
            model: the decoder with its prompts.
            token_budget: maximum number of tokens in a batch; if None, a number that suits the device.
            reuse: limits within which common prefixes are computed only once; if None, nothing is reused.
            rounding: machine epsilon of the arithmetic, for comparisons with vectors computed without
                sharing.
        """
        super().__init__(model.decoder.name, model.decoder)
        self._prompted = model
        if token_budget:
            self.token_budget = token_budget
        self.beginnings = None if reuse is None else _SharedBeginnings(self, model, reuse, rounding)
        self._trees = None if reuse is None else _SentenceTrees(self, model, reuse, rounding)
        # With contrast, the auxiliary prompts of all sentences run first, up to the contrast layer.
        self._auxiliary: PromptRunner | None = None
        if model.auxiliary is not None:
            self._auxiliary = PromptRunner(model.auxiliary, token_budget, reuse=reuse, rounding=rounding)

    def vectors(self, contents: Sequence[Ids], layer_counts: Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors of sentences after each number of layers, shape (sentences, layers, d)."""
        rows = self._prompted.rows(contents)
        beginnings = self.beginnings
        if beginnings is not None and not beginnings.pay(rows):
            beginnings = None
        if self._trees is not None and len(layer_counts) == 1:
            vectors = self._trees.vectors(contents, layer_counts[0], with_beginnings=beginnings is not None)
            if vectors is not None:
                return vectors[:, None]
        auxiliary = None if self._auxiliary is None else self._auxiliary.attended_values(contents)
        computed_beginnings = None if beginnings is None else beginnings.computed(layer_counts)
        row_vectors = self.run_rows(rows, computed_beginnings, layer_counts, auxiliary)
        # With several prompts (MetaEOL), the vector is the unweighted mean over the prompts.
        by_sentence = row_vectors.reshape(len(contents), -1, *row_vectors.shape[1:])
        means: NDArray[np.float32] = by_sentence.mean(axis=1)
        return means

    def attended_values(self, contents: Sequence[Ids]) -> NDArray[np.float32]:
        """Return the attention output of an auxiliary model at the last token, shape (sentences, d)."""
        return self.vectors(contents, [self._prompted.number])[:, 0]

    def run_rows(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        layer_counts: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Compute rows in batches of equal length; return their pooled states, shape (rows, layers, d)."""
        prompts = self._prompted.prompts
        lengths = []
        for row in rows:
            prompt = prompts[row.prompt]
            skipped = 0 if beginnings is None else prompt.fixed
            lengths.append(prompt.length(len(row.content)) - skipped)

        def compute(batch: NDArray[np.intp]) -> torch.Tensor:
            # All prompts of a sentence share the same auxiliary values.
            batch_auxiliary = None if auxiliary is None else auxiliary[batch // len(prompts)]
            return self.forward([rows[row] for row in batch], beginnings, layer_counts, batch_auxiliary)

        return self.run(lengths, compute)

    def forward(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        layer_counts: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> torch.Tensor:
        """Return the pooled states of one batch, shape (rows, layers, d)."""
        model = self._prompted
        past = None
        cache = None
        if beginnings is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=beginnings.mask.device)
            past = beginnings.mask[prompts]
            cache = beginnings.cache(prompts)
        layout = model.layout(rows, skipping=beginnings is not None)
        batch = model.batch(layout, past, None if auxiliary is None else torch.from_numpy(auxiliary))
        if model.attends:
            states = model.attended(batch, cache)[:, None]
        else:
            states = pooled_states(model.decoder, batch, layer_counts, cache)
        return states.float()


class _SharedBeginnings:
    """The cached beginnings of prompts, kept until the weights or the requested layers change."""

    def __init__(
        self, runner: PromptRunner, model: PromptedModel, limits: prefixes.ReuseLimits, rounding: float
    ) -> None:
        self._runner = runner
        self._prompted = model
        self._limits = limits
        self._rounding = rounding
        self._computed: FixedBeginnings | None = None
        self._computed_for: tuple[list[int], list[tuple[int, int]]] | None = None

    def pay(self, rows: Sequence[PromptRow]) -> bool:
        """Return whether reusing the beginnings saves work on these rows and gives the same vectors."""
        prompts = self._prompted.prompts
        if len(rows) < self._limits.rows * len(prompts):
            return False
        fixed_tokens = sum(prompts[row.prompt].fixed for row in rows)
        all_tokens = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
        return fixed_tokens >= self._limits.fixed_share * all_tokens and self.agree

    @cached_property
    def agree(self) -> bool:
        """Whether reusing the cached prompt beginnings gives the same vectors as running the whole prompt.

        Reuse changes the vectors if the model caches more than keys and values.
        """
        # Two sentences have the same length and are computed in one batch: some models cache a state that
        # cannot be repeated for several rows.
        contents = [text.ids for text in self._prompted.tokenize(["a", "a", "one two three"])]
        rows = self._prompted.rows(contents)
        layer_counts = [self._prompted.number]
        plain = self._runner.run_rows(rows, None, layer_counts)
        try:
            reused = self._runner.run_rows(rows, FixedBeginnings(self._prompted, layer_counts), layer_counts)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            _LOG.warning("%s: continuing without reuse of prompt beginnings (%s)", self._runner.name, error)
            return False
        return prefixes.agree(reused, plain, self._rounding)

    def computed(self, layer_counts: Sequence[int]) -> FixedBeginnings:
        """Return the beginnings for these numbers of layers; compute them again only if something changed."""
        weight_marks = [weight_mark(weight) for weight in self._prompted.decoder.model.parameters()]
        wanted_for = (list(layer_counts), weight_marks)
        if self._computed is None or self._computed_for != wanted_for:
            self._computed = FixedBeginnings(self._prompted, layer_counts)
            self._computed_for = wanted_for
        return self._computed


class _SentenceTrees:
    """Computes common prefixes of sentences once per template, if the vector is the last token's state."""

    def __init__(
        self, runner: PromptRunner, model: PromptedModel, limits: prefixes.ReuseLimits, rounding: float
    ) -> None:
        self._runner = runner
        self._prompted = model
        self._limits = limits
        self._rounding = rounding
        self._by_template: dict[tuple[int, int], prefixes.PrefixReuse] = {}  # key: template, layers

    def vectors(
        self, contents: Sequence[Ids], layer_count: int, *, with_beginnings: bool
    ) -> NDArray[np.float32] | None:
        """Return the vectors after this many layers, shape (sentences, d); None if trees cannot be used.

        ``with_beginnings`` says whether the fixed beginnings would be reused if trees are not used.
        """
        if not self._are_exact:
            return None
        by_template = []
        for template, prompt in enumerate(self._prompted.prompts):
            cached = prompt.fixed if with_beginnings else 0
            vectors = self._reuse_of(template, layer_count).shared(contents, cached)
            if vectors is None:
                return None
            by_template.append(vectors)
        means: NDArray[np.float32] = np.add.reduce(by_template) / np.float32(len(by_template))
        return means

    @property
    def _are_exact(self) -> bool:
        """Whether no state depends on later tokens, and the vector is the last token's state."""
        model = self._prompted
        reading = model.reading
        is_steered = reading.prepending is not None or reading.contrast is not None
        reads_last_state = not model.attends and not reading.prompt.echoes
        return not is_steered and reads_last_state and prefixes.known_kind(model.decoder.model)

    def _reuse_of(self, template: int, layer_count: int) -> prefixes.PrefixReuse:
        """Return the object that computes the trees of one template; it is created on the first call."""
        if (template, layer_count) not in self._by_template:
            decoder = self._prompted.decoder
            prompt = self._prompted.prompts[template]
            carrier, other = (text.ids for text in self._prompted.tokenize(["one two three", "a"]))

            def states(inputs: dict[str, Any]) -> torch.Tensor:
                return states_after(decoder, [layer_count], inputs)[layer_count]

            self._by_template[template, layer_count] = prefixes.PrefixReuse(
                decoder.model,
                prompt.before,
                prompt.after,
                states=states,
                finish=lambda picked: picked[:, 0],
                engine=self._runner,
                limits=self._limits,
                samples=prefixes.samples_of(carrier, other[:1]),
                plain=partial(self._plain_vectors, template, layer_count),
                rounding=self._rounding,
            )
        return self._by_template[template, layer_count]

    def _plain_vectors(self, template: int, layer_count: int, contents: Sequence[Ids]) -> NDArray[np.float32]:
        rows = [PromptRow(template, content) for content in contents]
        return self._runner.run_rows(rows, None, [layer_count])[:, 0]
