"""Starting without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from a start's many objects, nearly all of which stay.

    It would walk through all of them again and again while libraries are imported, a third of the time.
    What is there in the end is left out of later collections, too.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
