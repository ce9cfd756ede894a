"""A user's model, borrowed for a call and given back as it was."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A model has one state, whoever encodes with it: one call at a time.
_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


@contextmanager
def alone(model: torch.nn.Module) -> Iterator[None]:
    """Let no other thread use the model so meanwhile."""
    with _LOCKS_GUARD:
        lock = _LOCKS.setdefault(model, threading.RLock())
    with lock:
        yield


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off, and back on for the modules that had it on."""
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
    with torch.backends.mkldnn.flags(enabled=False, **unchanged):
        yield
