"""Run contents through a model in batches of equal length."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute.linear import PackedLinears
from stickytoken.encoders.protocol import equal_length_batches
from stickytoken.encoders.text_encoder import InputTemplate
from stickytoken.errors import EncodingError, InputError, ModelError, StickyTokenError
from stickytoken.machine import Precision, SharedSetting, available_cores

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
_SHOWN_REASON = 300
_AHEAD = 2

# OpenMP keeps the number of threads for each thread that asks.
_THREADS = SharedSetting(torch.get_num_threads, torch.set_num_threads, per_thread=True)
_MATMUL_PRECISION = SharedSetting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)

# Modules of these packages keep nothing about the texts that they compute.
_STATELESS = (
    "torch.",
    "transformers.models.",
    "transformers.activations",
    "sentence_transformers.",
    "stickytoken.encoders._routes.",
)


def worker_count(model: torch.nn.Module) -> int:
    """Batches that may be computed at a time: one each core if modules keep no state of texts."""
    stateless = all(
        f"{type(module).__module__}.".startswith(_STATELESS)
        and not (module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
    )
    if next(model.parameters()).device.type != "cpu" or not stateless:
        return 1
    return max(1, min(_THREADS.original, available_cores()))


def compute_all(compute: Callable[[Any], Any], items: Sequence[Any], workers: int) -> list[Any]:
    if workers <= 1 or len(items) <= 1:
        return [compute(item) for item in items]

    def work(item: Any) -> Any:
        with torch.inference_mode():
            return compute(item)

    size = min(workers, len(items))
    with _THREADS.at(1), ThreadPoolExecutor(size, thread_name_prefix="encode") as threads:
        results = [threads.submit(work, item) for item in items]
        try:
            wait(results, return_when=FIRST_EXCEPTION)
        finally:  # an error, Ctrl-C too, cancels what has not begun
            threads.shutdown(cancel_futures=True)
        return [result.result() for result in results]


class BatchEngine:
    """Runs inputs in batches of equal length, and in smaller ones after a device has run out of memory."""

    # On a CPU, several workers compute batches of their own. On an accelerator, the next batch is prepared
    # and sent while the previous one is computed.

    unit = "text"  # what an input is called in messages

    def __init__(self, name: str, model: Any) -> None:
        self.name, self._model = name, model

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    @cached_property
    def token_budget(self) -> int:
        return _CPU_TOKEN_BUDGET if self.device.type == "cpu" else _ACCELERATOR_TOKEN_BUDGET

    def run(
        self, lengths: Sequence[int], compute: Callable[[NDArray[np.intp]], torch.Tensor], workers: int = 1
    ) -> NDArray[np.float32]:
        """Compute inputs, at least one, given their lengths and how places of equal ones are computed."""
        batches: list[NDArray[np.intp]] = []
        parts: list[NDArray[np.float32]] = []
        waiting: deque[NDArray[np.intp]] = deque()
        computing: deque[torch.Tensor] = deque()
        if workers == 1:
            waiting.extend(equal_length_batches(lengths, self.token_budget))
        else:
            share = max(_LEAST_TOKENS, sum(lengths) // (workers * _BATCHES_PER_WORKER))
            batches = equal_length_batches(lengths, min(self.token_budget, share))
            parts = compute_all(lambda batch: compute(batch).numpy(), batches, workers)
        while waiting or computing:
            if not waiting or len(computing) == _AHEAD:
                parts.append(computing.popleft().cpu().numpy())
                continue
            batch = waiting.popleft()
            try:
                computing.append(compute(batch))
                batches.append(batch)
            except torch.OutOfMemoryError as error:
                length = lengths[batch[0]]
                if len(batch) == 1:
                    raise EncodingError(
                        f"{self.name}: {self.device} ran out of memory on a {self.unit} of {length} tokens: "
                        "use shorter sentences, a lower precision or another device"
                    ) from error
                self.token_budget = max(1, len(batch) * length // 2)
                torch.cuda.empty_cache()
                _LOG.warning(
                    "%s: out of memory on %s, continuing with batches of at most %d tokens",
                    self.name,
                    self.device,
                    self.token_budget,
                )
                waiting.extendleft(reversed(np.array_split(batch, 2)))
        results = np.empty((len(lengths), *parts[0].shape[1:]), dtype=np.float32)
        results[np.concatenate(batches)] = np.concatenate(parts)
        return results


class BatchRunner(BatchEngine):
    def __init__(
        self, model: SentenceTransformer, template: InputTemplate, name: str, token_budget: int | None
    ) -> None:
        super().__init__(name, model)
        self._template, self._given_budget = template, token_budget

    @cached_property
    def token_budget(self) -> int:
        if self._given_budget:
            budget = self._given_budget
        else:
            budget = self._budget_by_memory() if self.device.type == "cuda" else super().token_budget
        _LOG.info("%s: batches of at most %d tokens on %s", self.name, budget, self.device)
        return budget

    def _budget_by_memory(self) -> int:
        device, overhead = self.device, self._template.overhead
        length = min(_TRIAL_LENGTH, (self._model.max_seq_length or _TRIAL_LENGTH) - overhead)
        trial = [(0,) * max(1, length)] * _TRIAL_TEXTS
        self.launch(trial)  # allocates kernels and workspaces that remain
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        self.launch(trial)
        taken = torch.cuda.max_memory_allocated(device) - before
        free, _ = torch.cuda.mem_get_info(device)
        bytes_per_token = max(1.0, taken / (len(trial) * (len(trial[0]) + overhead)))
        return max(_LEAST_BUDGET, min(int(_MEMORY_SHARE * free / bytes_per_token), _LARGEST_TOKEN_BUDGET))

    def vectors(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        lengths = [len(content) + self._template.overhead for content in contents]
        return self.run(
            lengths, lambda batch: self.launch([contents[row] for row in batch]), worker_count(self._model)
        )

    def launch(self, contents: Sequence[tuple[int, ...]]) -> torch.Tensor:  # of equal length
        return self._output(self.features(contents))[:, : self._model.truncate_dim]

    def _output(self, features: dict[str, Any]) -> torch.Tensor:
        """Return the vectors that the model computes, or say in one line that it computes none."""
        try:
            output = self._model(features)
        except (torch.OutOfMemoryError, StickyTokenError):
            raise
        except Exception as error:  # architectures refuse inputs in ways of their own; chained
            reason = " ".join(str(error).split())[:_SHOWN_REASON]
            raise ModelError(
                f"{self.name} cannot compute the vector of a text ({type(error).__name__}: {reason}): check "
                "that its tokenizer and its configuration fit its weights"
            ) from error
        vectors = output.get("sentence_embedding")
        if not isinstance(vectors, torch.Tensor) or vectors.ndim != 2:
            kinds = ", ".join(type(module).__name__ for module in self._model)
            raise ModelError(
                f"{self.name} gives no vector of a text, because its modules are {kinds}: add a pooling, or "
                "pass an embedding model"
            )
        return vectors.float()

    def features(self, contents: Sequence[tuple[int, ...]]) -> dict[str, Any]:  # of equal length
        """The inputs of the first module on the model's device: ids with special tokens, masks and types."""
        template = self._template
        length = len(contents[0])
        flat = np.fromiter(chain.from_iterable(contents), np.int64, len(contents) * length)
        rows = np.empty((len(contents), length + template.overhead), np.int64)
        begin = len(template.before)
        end = begin + length
        rows[:, :begin] = template.before
        rows[:, begin:end] = flat.reshape(len(contents), length)
        rows[:, end:] = template.after
        ids = self._sent(torch.from_numpy(rows))
        features = dict(template.features)
        if template.flat:
            features["input_ids"] = ids.reshape(-1)
            features["offsets"] = torch.arange(0, ids.numel(), ids.shape[1], device=self.device)
            return features
        features["input_ids"] = ids
        features["attention_mask"] = torch.ones_like(ids)
        if template.token_types is not None:
            before, content, after = template.token_types
            types = [*before, *[content] * length, *after]
            features["token_type_ids"] = self._sent(torch.tensor(types)).expand_as(ids)
        return features

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the model's device; from pinned memory, so that a GPU is not waited for."""
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


# A context in which the model computes.
Arithmetic: TypeAlias = Callable[[], AbstractContextManager[object]]

# Machine epsilon.
ROUNDING = {Precision.TF32: 2**-10, Precision.BFLOAT16: 2**-7, Precision.FLOAT16: 2**-10}


def require_precision(model: torch.nn.Module, precision: Precision, name: str) -> None:
    parameter = next(model.parameters())
    there = [Precision.BFLOAT16]
    if parameter.device.type != "cpu":
        there.append(Precision.FLOAT16)
    if parameter.device.type == "cuda":
        there.insert(0, Precision.TF32)
    if precision not in there:
        raise InputError(
            f"precision {precision} is not available on {parameter.device}: use {' or '.join(there)}, "
            "or leave it out"
        )
    if parameter.dtype != torch.float32:
        found = str(parameter.dtype).removeprefix("torch.")
        raise InputError(f"{name} already computes in {found}: leave out the precision {precision}")


def arithmetic(model: torch.nn.Module, precision: Precision | None, packed: bool) -> Arithmetic:
    kind = next(model.parameters()).device.type
    if kind == "cpu":
        if precision is not None:
            return PackedLinears(model, torch.bfloat16, packed=packed).active
        return PackedLinears(model).active if packed else nullcontext
    if precision is None:
        return nullcontext
    if precision is Precision.TF32:
        return _tf32
    dtype = getattr(torch, precision)
    return lambda: torch.autocast(kind, dtype=dtype)


def _tf32() -> AbstractContextManager[None]:
    return _MATMUL_PRECISION.at("high")


def pools_by(model: SentenceTransformer, mode: str) -> bool:
    """Whether the model is a transformer, then a pooling of this mode alone, then whatever follows."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if len(model) < 2 or not isinstance(model[0], Transformer) or not isinstance(model[1], Pooling):
        return False
    return model[1].pooling_mode in (mode, (mode,), [mode])


@contextmanager
def first_token_only(attention: torch.nn.Module) -> Iterator[None]:
    if "forward" in vars(attention):  # replaced by its owner
        yield
        return
    original: Any = attention.forward

    def forward(*arguments: Any, **options: Any) -> tuple[Any, ...]:
        states, *others = original(*arguments, **options)
        return states[:, :1], *others

    vars(attention)["forward"] = forward
    try:
        yield
    finally:
        vars(attention).pop("forward", None)
