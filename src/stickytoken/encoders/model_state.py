"""Borrow a user's model for one call, and restore its state."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A model has one state, whoever encodes with it: one call at a time.
_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()
# torch has one flag for all threads: the first computation switches oneDNN off, the last one on again.
_BOUNDED: list[AbstractContextManager[object]] = []
_BOUNDED_GUARD = threading.Lock()


@contextmanager
def exclusive(model: torch.nn.Module) -> Iterator[None]:
    """Hold an exclusive lock on the model; the same thread may take it again.

    Everything that reads or replaces the state of a model's modules holds it: forward passes, settings,
    training flags. Models that share their first weights share the lock.
    """
    owner = next((module for module in model.modules() if module._parameters), model)
    with _LOCKS_GUARD:
        lock = _LOCKS.setdefault(owner, threading.RLock())
    with lock:
        yield


@contextmanager
def computing(model: torch.nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Prepare the model for one computation: exclusive, in evaluation mode, with bounded memory.

    Args:
        model: the model.
        gradients: leave inference mode off, as forward-mode derivatives need it.
    """
    import torch

    mode = torch.no_grad() if gradients else torch.inference_mode()
    with exclusive(model), evaluating(model), mode, bounded_memory(model):
        yield


def weight_mark(weight: torch.Tensor) -> tuple[int, int]:
    """Return what changes when torch writes to a weight or replaces it: its address and version."""
    # Weights that were made in inference mode have no version.
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then restore the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def bounded_memory(model: torch.nn.Module) -> Iterator[None]:
    """Keep torch from choosing oneDNN for float32 on a CPU; packed layers call it with few shapes.

    oneDNN keeps a kernel with its buffers for every shape of batch, up to a thousand. Lengths and
    batch sizes vary here, so the process grew to 2.7 GB on all-MiniLM-L6-v2; without it, it stays at
    0.9 GB. For bfloat16, oneDNN has the only fast kernels.
    """
    import torch

    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        yield
        return
    unchanged = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}
    with _BOUNDED_GUARD:
        off = nullcontext() if _BOUNDED else torch.backends.mkldnn.flags(enabled=False, **unchanged)
        off.__enter__()
        _BOUNDED.append(off)
    try:
        yield
    finally:
        with _BOUNDED_GUARD:
            # Whichever ends last gives back what the first one changed.
            own = _BOUNDED.pop()
            own.__exit__(None, None, None)
