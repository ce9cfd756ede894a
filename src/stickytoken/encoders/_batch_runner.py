"""Run contents through a model in batches of equal length."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._template import InputTemplate
from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.cpu.workers import compute_all, worker_count
from stickytoken.errors import EncodingError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOG = logging.getLogger(__name__)

# all-MiniLM-L6-v2 and all-mpnet-base-v2 are as fast, within 5%, from 512 to 4096 tokens a batch.
_CPU_TOKEN_BUDGET = 1024
# Batches for each worker, so that all end at about the same time; smaller ones only cost more calls.
_BATCHES_PER_WORKER, _LEAST_TOKENS = 4, 256
_ACCELERATOR_TOKEN_BUDGET = 65536
_LEAST_BUDGET, _LARGEST_TOKEN_BUDGET = 4096, 262144
# Share of the free memory for a batch; the rest is for kernels and other processes.
_MEMORY_SHARE = 0.4
_TRIAL_TEXTS, _TRIAL_LENGTH = 64, 32
_AHEAD = 2

_Computed: TypeAlias = tuple[NDArray[np.intp], NDArray[np.float32]]
"""Places of contents, and their vectors."""


class BatchRunner:
    """Run contents through all modules of a model.

    On a CPU, every core computes batches of its own. On an accelerator, the next batch is prepared and sent
    while the previous one is computed.

    Args:
        model: the model, on its device.
        template: special tokens around the content.
        name: name of the model in messages.
        token_budget: tokens per batch; None chooses by device and free memory.
    """

    def __init__(
        self, model: SentenceTransformer, template: InputTemplate, name: str, token_budget: int | None
    ) -> None:
        self._model = model
        self._template = template
        self._name = name
        self._given_budget = token_budget

    @cached_property
    def token_budget(self) -> int:
        """Tokens per batch; reduced after running out of memory."""
        budget = self._given_budget or self._budget_by_device()
        _LOG.info("%s: batches of at most %d tokens on %s", self._name, budget, self._model.device)
        return budget

    def _budget_by_device(self) -> int:
        if self._model.device.type == "cuda":
            return self._budget_by_memory()
        return _CPU_TOKEN_BUDGET if self._model.device.type == "cpu" else _ACCELERATOR_TOKEN_BUDGET

    def vectors(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32] | None:
        """Compute the vectors of contents, shape (n, d); None without contents."""
        lengths = [len(content) + self._template.overhead for content in contents]
        if not lengths:
            return None
        workers = worker_count(self._model)
        found = self._in_turn(contents, lengths) if workers == 1 else self._by(workers, contents, lengths)
        rows, parts = zip(*found, strict=True)
        vectors = np.empty((len(contents), parts[0].shape[1]), dtype=np.float32)
        vectors[np.concatenate(rows)] = np.concatenate(parts)
        return vectors

    def _by(
        self, workers: int, contents: Sequence[tuple[int, ...]], lengths: Sequence[int]
    ) -> list[_Computed]:
        share = max(_LEAST_TOKENS, sum(lengths) // (workers * _BATCHES_PER_WORKER))
        found: list[_Computed] = []

        def compute(batch: NDArray[np.intp]) -> None:
            found.append((batch, self.launch([contents[row] for row in batch]).numpy()))

        compute_all(compute, equal_length_batches(lengths, min(self.token_budget, share)), workers)
        return found

    def _in_turn(self, contents: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> Iterator[_Computed]:
        waiting = deque(equal_length_batches(lengths, self.token_budget))
        computing: deque[tuple[NDArray[np.intp], torch.Tensor]] = deque()
        while waiting or computing:
            if waiting and len(computing) < _AHEAD:
                batch = waiting.popleft()
                try:
                    computing.append((batch, self.launch([contents[row] for row in batch])))
                except torch.OutOfMemoryError as error:
                    self._shrink(batch, lengths[batch[0]], error)
                    waiting.extendleft(reversed(np.array_split(batch, 2)))
                continue
            batch, found = computing.popleft()
            yield batch, found.cpu().numpy()

    def launch(self, contents: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Start computing contents of equal length; shape (n, d), on the model's device."""
        found: torch.Tensor = self._model(self.features(contents))["sentence_embedding"].float()
        dimension = self._model.truncate_dim
        return found if dimension is None else found[:, :dimension]

    def features(self, contents: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        """Return the model input for contents of equal length, including special tokens."""
        template, device = self._template, self._model.device
        rows = [[*template.before, *content, *template.after] for content in contents]
        ids = torch.tensor(rows, dtype=torch.long)
        if device.type == "cuda":
            ids = ids.pin_memory()
        ids = ids.to(device, non_blocking=True)
        features: dict[str, Any] = dict(template.features)
        if template.flat:
            features["input_ids"] = ids.reshape(-1)
            features["offsets"] = torch.arange(0, ids.numel(), ids.shape[1], device=device)
            return features
        features["input_ids"] = ids
        features["attention_mask"] = torch.ones_like(ids)
        if template.token_types is not None:
            before, content, after = template.token_types
            types = [*before, *[content] * len(contents[0]), *after]
            features["token_type_ids"] = torch.tensor(types, device=device).expand_as(ids)
        return features

    def _shrink(self, batch: NDArray[np.intp], length: int, error: torch.OutOfMemoryError) -> None:
        if len(batch) == 1:
            raise EncodingError(
                f"{self._name}: {self._model.device} ran out of memory on a text of {length} tokens: "
                "use shorter sentences, a lower precision or another device"
            ) from error
        self.token_budget = len(batch) * length // 2
        torch.cuda.empty_cache()
        _LOG.warning(
            "%s: out of memory on %s, continuing with batches of at most %d tokens",
            self._name,
            self._model.device,
            self.token_budget,
        )

    def _budget_by_memory(self) -> int:
        """Estimate how many tokens fit into the free memory from the use of a small batch."""
        device = self._model.device
        longest = self._model.max_seq_length or _TRIAL_LENGTH
        length = min(_TRIAL_LENGTH, longest - self._template.overhead)
        trial = [(0,) * max(1, length)] * _TRIAL_TEXTS
        self.launch(trial)  # allocates kernels and workspaces that remain
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        self.launch(trial)
        taken = torch.cuda.max_memory_allocated(device) - before
        free, _ = torch.cuda.mem_get_info(device)
        return affordable_tokens(free, taken / (len(trial) * (len(trial[0]) + self._template.overhead)))


def affordable_tokens(free: float, bytes_per_token: float) -> int:
    """Return the tokens per batch that leave enough memory on a device.

    Args:
        free: free memory in bytes.
        bytes_per_token: size of the model's intermediate results.
    """
    affordable = int(_MEMORY_SHARE * free / max(1.0, bytes_per_token))
    return max(_LEAST_BUDGET, min(affordable, _LARGEST_TOKEN_BUDGET))
