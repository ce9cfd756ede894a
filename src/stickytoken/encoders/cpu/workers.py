"""Compute batches on a CPU by several threads, each of which takes whole batches.

The threads of one product wait for each other after every layer, and on a shared machine the slowest decides.
Threads with a batch each never wait. A batch's vectors do not depend on which thread computes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import torch

from stickytoken.machine import available_cores

T = TypeVar("T")

# For every call under way, the number of torch's threads before the first began.
_BEFORE: list[int] = []
_GUARD = threading.Lock()

# Modules of these packages keep nothing about the texts that they compute.
_STATELESS = ("torch.", "transformers.models.", "transformers.activations", "sentence_transformers.")


def worker_count(model: torch.nn.Module) -> int:
    """Return how many batches of a model may be computed at a time.

    One on an accelerator, and for models with modules or hooks of their own, which may not expect it.
    Otherwise one for each core, but not more than torch would use threads (``OMP_NUM_THREADS``,
    ``torch.set_num_threads``).
    """
    if next(model.parameters()).device.type != "cpu" or not all(map(_stateless, model.modules())):
        return 1
    return max(1, min(_threads_allowed(), available_cores()))


def compute_all(compute: Callable[[T], None], items: Sequence[T], workers: int) -> None:
    """Call a function with every item, by several threads in inference mode."""
    if workers <= 1 or len(items) <= 1:
        for item in items:
            compute(item)
        return
    waiting = deque(items)

    def work() -> None:
        with torch.inference_mode():
            while waiting:
                try:
                    item = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                compute(item)

    with (
        _one_thread_each(),
        ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="encode") as threads,
    ):
        try:
            for done in as_completed([threads.submit(work) for _ in range(min(workers, len(items)))]):
                done.result()
        except BaseException:  # Ctrl-C too: threads stop after the batches that they have begun
            waiting.clear()
            raise


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let torch use one thread for a product, in this thread and in those that start inside."""
    with _GUARD:
        before = _threads_allowed()
        _BEFORE.append(before)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _GUARD:
            _BEFORE.pop()
            torch.set_num_threads(before)


def _threads_allowed() -> int:
    """Return how many threads torch may use when no call is under way."""
    return _BEFORE[0] if _BEFORE else torch.get_num_threads()


def _stateless(module: torch.nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks
    return not hooked and f"{type(module).__module__}.".startswith(_STATELESS)
