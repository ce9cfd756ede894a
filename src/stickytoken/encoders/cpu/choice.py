"""Choose by measuring whether a model's linear layers are packed on this machine.

Which path is faster depends on the processor, on the build of torch and on the sizes of the layers. The
answer is kept in the user's cache folder.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Sequence

import torch

from stickytoken.cache import keep, recalled
from stickytoken.encoders.cpu._linear_places import linear_places
from stickytoken.hashing import digest

_LOG = logging.getLogger(__name__)
_SECONDS = 0.5
_LEAST_TURNS = 3
_OPERATIONS, _MOST_TEXTS = 20e9, 64
# Increased when the measurement changes.
_VERSION = 1


def trial_inputs(network: torch.nn.Module, contents: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Take as many contents as the model computes in about a tenth of a second, at least one.

    Returns:
        None of them for a model without layers to pack.
    """
    weights = sum(place.layer.weight.numel() for place in linear_places(network))
    texts: list[tuple[int, ...]] = []
    operations = 0
    for content in reversed(contents) if weights else ():
        operations += 2 * weights * len(content)
        if texts and (operations > _OPERATIONS or len(texts) == _MOST_TEXTS):
            break
        texts.append(content)
    return texts


def packing_pays(
    network: torch.nn.Module,
    name: str,
    plain: Callable[[], object],
    packed: Callable[[], object],
    threads: int,
) -> bool:
    """Time the model with torch's own layers and with packed ones.

    Args:
        network: the model.
        name: how messages call it.
        plain: computes a few texts with torch's own layers.
        packed: computes them with packed layers.
        threads: how many threads compute.

    Returns:
        Whether packed layers are faster on this machine, as measured now or earlier.
    """
    key = f"packing-{_key(network, threads)}"
    known = recalled(key)
    if known is None or not {"plain", "packed"} <= known.keys():
        known = dict(zip(("plain", "packed"), shortest((plain, packed)), strict=True))
        keep(key, known)
    pays = bool(known["packed"] <= known["plain"])
    _LOG.info(
        "%s: linear layers %s, measured on this machine (%.3f s, otherwise %.3f s)",
        name,
        "have packed weights" if pays else "are torch's own",
        min(known["packed"], known["plain"]),
        max(known["packed"], known["plain"]),
    )
    return pays


def shortest(ways: tuple[Callable[[], object], ...]) -> list[float]:
    """Return the shortest time of each way in seconds, by turns within about half a second.

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
