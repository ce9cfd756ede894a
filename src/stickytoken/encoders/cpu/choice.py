"""Measure how a model is computed fastest on this machine.

That depends on the processor, on the build of torch and on the sizes of the layers. The answer is kept in the
user's cache folder.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from stickytoken.encoders.cpu.linear import linear_places
from stickytoken.machine import digest, keep, recalled

_SECONDS = 0.5
_LEAST_TURNS = 3
_OPERATIONS, _MOST_TEXTS = 20e9, 64
# Increased when the measurement changes.
_VERSION = 1


def trial_inputs(network: torch.nn.Module, contents: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Take as many contents as the model computes in about a tenth of a second, at least one."""
    weights = sum(place.layer.weight.numel() for place in linear_places(network))
    texts: list[tuple[int, ...]] = []
    operations = 0
    for content in reversed(contents) if weights else ():
        operations += 2 * weights * len(content)
        if texts and (operations > _OPERATIONS or len(texts) == _MOST_TEXTS):
            break
        texts.append(content)
    return texts


def measured(
    what: str, network: torch.nn.Module, ways: Mapping[str, Callable[[], object]], threads: int
) -> dict[str, float]:
    """Time ways to compute a few texts with a model, or read what was found on this machine before."""
    known = earlier(what, network, ways.keys(), threads)
    if known is None:
        known = dict(zip(ways, shortest(tuple(ways.values())), strict=True))
        keep(f"{what}-{_key(network, threads)}", known)
    return known


def earlier(
    what: str, network: torch.nn.Module, ways: Collection[str], threads: int
) -> dict[str, float] | None:
    """Return what `measured` found on this machine before; None if it has not measured these ways."""
    known = recalled(f"{what}-{_key(network, threads)}") or {}
    found = {name: known[name] for name in ways if isinstance(known.get(name), float)}
    return found if len(found) == len(ways) else None


def shortest(ways: tuple[Callable[[], object], ...]) -> list[float]:
    """Call the ways in turn for about half a second, and return the shortest time of each in seconds.

    Other work on the machine makes single times longer, never shorter.
    """
    for way in ways:
        way()  # packs weights, and builds kernels
    found: list[list[float]] = [[] for _ in ways]
    ends = time.perf_counter() + _SECONDS
    while len(found[0]) < _LEAST_TURNS or time.perf_counter() < ends:
        for way, times in zip(ways, found, strict=True):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
    return [min(times) for times in found]


def _key(network: torch.nn.Module, threads: int) -> str:
    return digest(
        {
            "version": _VERSION,
            "model": repr(network),
            "machine": [platform.node(), torch.backends.cpu.get_cpu_capability()],
            "torch": torch.__version__,
            "threads": threads,
        }
    )
