"""Run sequences of token ids through a model, in batches whose inputs all have the same length."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.inputs.template import InputTemplate
from stickytoken.errors import EncodingError, ModelError, StickyTokenError
from stickytoken.machine import SharedSetting, available_cores

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOG = logging.getLogger(__name__)

# Maximum number of tokens per batch on a CPU. Between 512 and 4096 tokens per batch, the speed of
# all-MiniLM-L6-v2 and of all-mpnet-base-v2 varies by at most 5%.
_CPU_TOKEN_BUDGET = 1024
# Where possible, the number of tokens in a batch is a multiple of this constant. Matrix kernels are fastest
# if the number of tokens is a multiple of 64, and if batches have only a few different sizes.
TOKEN_MULTIPLE = 64
# Number of batches for each worker. With several small batches, all workers finish at about the same time.
_BATCHES_PER_WORKER = 4
# Smallest number of tokens per batch when several workers share the inputs. In smaller batches, the overhead
# of a call dominates.
_MIN_SHARED_TOKENS = 256
# Maximum number of tokens per batch on an accelerator whose free memory is unknown.
_ACCELERATOR_TOKEN_BUDGET = 65536
# Bounds for the number of tokens per batch on a GPU, which is computed from its free memory.
_MIN_GPU_TOKENS = 4096
_MAX_GPU_TOKENS = 262144
# Share of the free memory that a batch may use; the rest is for kernels and other processes.
_MEMORY_SHARE = 0.4
# Size of the trial batch that measures memory per token: number of texts, and number of tokens in each.
_TRIAL_TEXTS = 64
_TRIAL_LENGTH = 32
# Number of batches that are launched before the first result is read, so that the next batch is prepared
# while the current batch runs.
_BATCHES_IN_FLIGHT = 2
# Maximum number of characters that a message quotes from a model's error.
_SHOWN_REASON = 300

# How many threads torch uses. OpenMP keeps a separate number for each calling thread.
_TORCH_THREADS = SharedSetting(torch.get_num_threads, torch.set_num_threads, per_thread=True)

# Modules in these packages keep no state from the texts that they encode.
_STATELESS_PACKAGES = (
    "torch.",
    "transformers.models.",
    "transformers.activations.",
    "sentence_transformers.",
    "stickytoken.encoders.inputs.routes.",
)


def worker_count(model: torch.nn.Module) -> int:
    """Return how many batches may run at once: on a CPU as many as cores if no module keeps state, else 1."""
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    if not is_on_cpu or not all(map(_is_stateless, model.modules())):
        return 1
    users_limit = _TORCH_THREADS.original  # torch's own setting, even while workers override it
    return max(1, min(users_limit, available_cores()))


def _is_stateless(module: torch.nn.Module) -> bool:
    # Hooks may keep state. torch has no public way to ask a module for its hooks.
    has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    package = f"{type(module).__module__}."  # the listed packages end with a dot too
    return package.startswith(_STATELESS_PACKAGES) and not has_hooks


def compute_all(compute: Callable[[Any], Any], items: Sequence[Any], workers: int) -> list[Any]:
    """Apply a function to each item, and return the results in order.

    If there are several workers, each worker is a thread, inside which torch uses no further threads. The
    first error stops the work and is raised.
    """
    if workers <= 1 or len(items) <= 1:
        return [compute(item) for item in items]

    # torch keeps inference mode and lower precision (autocast) per thread, so workers don't inherit them.
    is_precision_lower = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")

    def work(item: Any) -> Any:
        with torch.inference_mode(), torch.autocast("cpu", dtype=dtype, enabled=is_precision_lower):
            return compute(item)

    pool_size = min(workers, len(items))
    with _TORCH_THREADS.at(1), ThreadPoolExecutor(pool_size, thread_name_prefix="encode") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # also after Ctrl-C: cancel the items that have not been started
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]


def equal_length_batches(lengths: Sequence[int], token_budget: int) -> list[NDArray[np.intp]]:
    """Divide inputs into batches whose inputs all have the same length, the longest inputs first.

    Args:
        lengths: number of tokens in each input.
        token_budget: maximum number of tokens in a batch; a longer input becomes a batch of its own.

    Returns:
        One array per batch, with the indices of its inputs.
    """
    length_of_input = np.asarray(lengths, dtype=np.intp)
    batches: list[NDArray[np.intp]] = []
    for length in sorted(set(length_of_input.tolist()), reverse=True):
        indices = np.flatnonzero(length_of_input == length)
        batch_size = max(1, token_budget // max(1, length))
        # Matrix kernels are fastest if a batch's number of tokens is a multiple of TOKEN_MULTIPLE. All inputs
        # have `length` tokens, so the batch has such a number if its number of inputs is a multiple of
        # `input_multiple`.
        input_multiple = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
        if batch_size >= input_multiple:
            batch_size -= batch_size % input_multiple
        batches += [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    return batches


class BatchEngine:
    """Runs inputs in batches whose inputs all have the same length.

    If the device runs out of memory, later batches are smaller. On a CPU, several workers each compute one
    batch. On an accelerator, the next batch is prepared and sent while the current batch is computed.
    """

    unit = "text"  # what an input is called in messages

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self._model = model

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    @cached_property
    def token_budget(self) -> int:
        """Maximum number of tokens in a batch."""
        return _CPU_TOKEN_BUDGET if self.device.type == "cpu" else _ACCELERATOR_TOKEN_BUDGET

    def run(
        self, lengths: Sequence[int], compute: Callable[[NDArray[np.intp]], torch.Tensor], workers: int = 1
    ) -> NDArray[np.float32]:
        """Compute all inputs in batches, and return one result row per input, in the order of the inputs.

        Args:
            lengths: number of tokens in each input. There is at least one input.
            compute: function that takes the indices of inputs of equal length, and returns their results.
            workers: number of batches to compute at a time.
        """
        if workers == 1:
            batches, outputs = self._run_in_turn(lengths, compute)
        else:  # on a CPU, see `worker_count`
            # Several small batches for each worker, so that all finish at about the same time.
            tokens_per_batch = max(_MIN_SHARED_TOKENS, sum(lengths) // (workers * _BATCHES_PER_WORKER))
            batches = equal_length_batches(lengths, min(self.token_budget, tokens_per_batch))
            outputs = compute_all(lambda batch: compute(batch).numpy(), batches, workers)
        results = np.empty((len(lengths), *outputs[0].shape[1:]), dtype=np.float32)
        # A batch holds the indices of its inputs, so this puts the outputs into the order of the inputs.
        results[np.concatenate(batches)] = np.concatenate(outputs)
        return results

    def _run_in_turn(
        self, lengths: Sequence[int], compute: Callable[[NDArray[np.intp]], torch.Tensor]
    ) -> tuple[list[NDArray[np.intp]], list[NDArray[np.float32]]]:
        """Return the batches that were computed, and the output of each, in the same order.

        A batch that does not fit into memory is divided, and later batches are smaller.
        """
        batches: list[NDArray[np.intp]] = []
        outputs: list[NDArray[np.float32]] = []
        waiting = deque(equal_length_batches(lengths, self.token_budget))
        in_flight: deque[torch.Tensor] = deque()  # launched on the device, but not read yet
        while waiting or in_flight:
            if not waiting or len(in_flight) == _BATCHES_IN_FLIGHT:
                oldest_output = in_flight.popleft()
                outputs.append(oldest_output.cpu().numpy())  # waits until the device has computed it
                continue
            batch = waiting.popleft()
            try:
                in_flight.append(compute(batch))
                batches.append(batch)
            except torch.OutOfMemoryError as error:
                self._lower_budget(batch, lengths[batch[0]], error)  # raises an error for a single input
                waiting = deque(self._divide_batches([batch, *waiting], lengths))
        return batches, outputs

    def _divide_batches(
        self, batches: Iterable[NDArray[np.intp]], lengths: Sequence[int]
    ) -> Iterator[NDArray[np.intp]]:
        for batch in batches:
            tokens = len(batch) * lengths[batch[0]]
            part_count = min(len(batch), math.ceil(tokens / self.token_budget))
            yield from np.array_split(batch, part_count)

    def _lower_budget(self, batch: NDArray[np.intp], length: int, error: Exception) -> None:
        # Halves the budget after a batch of inputs with ``length`` tokens each that did not fit into memory.
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


class BatchRunner(BatchEngine):
    """Runs the content ids of texts through a SentenceTransformer, with the template around them."""

    def __init__(
        self, model: SentenceTransformer, template: InputTemplate, name: str, token_budget: int | None
    ) -> None:
        super().__init__(name, model)
        self._template = template
        self._requested_budget = token_budget

    @cached_property
    def token_budget(self) -> int:
        if self._requested_budget:
            budget = self._requested_budget
        elif self.device.type == "cuda":
            budget = self._measure_token_budget()
        else:
            budget = super().token_budget
        _LOG.info("%s: batches of at most %d tokens on %s", self.name, budget, self.device)
        return budget

    def _measure_token_budget(self) -> int:
        # Returns how many tokens fit into the free memory of the GPU, by the memory that a trial batch takes.
        overhead = self._template.overhead  # special tokens per text
        length = min(_TRIAL_LENGTH, (self._model.max_seq_length or _TRIAL_LENGTH) - overhead)
        trial = [(0,) * max(1, length)] * _TRIAL_TEXTS  # the values of the ids don't matter
        self.launch(trial)  # first run: allocates kernels and workspaces that stay in memory
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.launch(trial)
        bytes_taken = torch.cuda.max_memory_allocated(self.device) - before
        bytes_free, _ = torch.cuda.mem_get_info(self.device)
        tokens = len(trial) * (len(trial[0]) + overhead)
        bytes_per_token = max(1.0, bytes_taken / tokens)
        budget = int(_MEMORY_SHARE * bytes_free / bytes_per_token)
        return max(_MIN_GPU_TOKENS, min(budget, _MAX_GPU_TOKENS))

    def vectors(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        """Return the vectors of the given content-id sequences, in the same order, with shape (n, d)."""
        lengths = [len(content) + self._template.overhead for content in contents]

        def compute(batch: NDArray[np.intp]) -> torch.Tensor:
            return self.launch([contents[row] for row in batch])

        return self.run(lengths, compute, worker_count(self._model))

    def launch(self, contents: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Return the vectors of equally long content id sequences, shape (n, d), on the model's device."""
        return self._run_model(self.features(contents))[:, : self._model.truncate_dim]

    def _run_model(self, features: dict[str, Any]) -> torch.Tensor:
        """Run the model and return its vectors; raise a short error if it fails or returns none."""
        try:
            output = self._model(features)
        except (torch.OutOfMemoryError, StickyTokenError):
            raise
        except Exception as error:  # each architecture rejects inputs with its own errors
            reason = " ".join(str(error).split())[:_SHOWN_REASON]
            raise ModelError(
                f"{self.name} cannot compute the vector of a text ({type(error).__name__}: {reason}): check "
                "that its tokenizer and its configuration fit its weights"
            ) from error
        vectors = output.get("sentence_embedding")
        if not isinstance(vectors, torch.Tensor) or vectors.ndim != 2:
            kinds = ", ".join(type(module).__name__ for module in self._model)
            raise ModelError(
                f"{self.name} gives no vector for a text, because its modules are {kinds}: add a pooling "
                "module, or pass an embedding model"
            )
        return vectors.float()

    def features(self, contents: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        """Return the first module's inputs for equally long sequences of content ids, on the model's device.

        The inputs are the ids (including special tokens), masks and token types. For a static embedding, they
        are the ids of all texts in one list, and the offset at which each text begins.
        """
        template = self._template
        length = len(contents[0])
        content_ids = np.fromiter(chain.from_iterable(contents), np.int64, len(contents) * length)
        rows = np.empty((len(contents), length + template.overhead), np.int64)
        begin = len(template.before)
        end = begin + length
        rows[:, :begin] = template.before
        rows[:, begin:end] = content_ids.reshape(len(contents), length)
        rows[:, end:] = template.after
        ids = self._send(torch.from_numpy(rows))
        features = dict(template.features)
        if template.flat:
            features["input_ids"] = ids.reshape(-1)
            features["offsets"] = torch.arange(0, ids.numel(), ids.shape[1], device=self.device)
            return features
        features["input_ids"] = ids
        features["attention_mask"] = torch.ones_like(ids)  # nothing is padded, because the lengths are equal
        if template.token_types is not None:
            types = template.token_types.of_input(length)
            features["token_type_ids"] = self._send(torch.tensor(types)).expand_as(ids)
        return features

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # only a copy from pinned memory leaves the CPU free meanwhile
        return tensor.to(self.device, non_blocking=True)


def pools_by(model: SentenceTransformer, mode: str) -> bool:
    """Return whether the model is a transformer followed by a pooling module that uses only this mode."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if len(model) < 2 or not isinstance(model[0], Transformer) or not isinstance(model[1], Pooling):
        return False
    return model[1].pooling_mode in (mode, (mode,), [mode])  # a name or a sequence of names
