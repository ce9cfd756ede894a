"""One view of a model as an encoder; several views of one model share what was encoded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._stand_in import StandIn
from stickytoken.encoders.protocol import Encoder, reads_ids, require_ids
from stickytoken.encoders.views import View, Views
from stickytoken.errors import InputError
from stickytoken.precision import Precision

Vectors = NDArray[np.float32]


class ViewEncoder(StandIn[Any]):
    """Encodes texts in one view of a model.

    Args:
        model: the model.
        view: the view.
        shared: vectors of all views of what was encoded before.
    """

    def __init__(self, model: Encoder, view: View, shared: SharedVectors) -> None:
        super().__init__(model)
        self.model = model
        self._view = view
        self._shared = shared

    @property
    def makes_up_vectors(self) -> bool:
        """Whether the model only stands in for one, to count texts."""
        return bool(getattr(self.model, "makes_up_vectors", False))

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""
        return self._view.dimension

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> Vectors:
        """Encode texts; see `Encoder.encode`."""
        return self._of(self._shared.encode(texts), allow_zero)

    def _of(self, vectors: Vectors, allow_zero: bool) -> Vectors:
        if not allow_zero and len(vectors):
            self._view.units(vectors)  # refuses zero vectors
        return self._view.of(vectors)


class IdViewEncoder(ViewEncoder):
    """Encodes texts and token ids in one view of a model."""

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> Vectors:
        """Encode lists of content ids; see `IdReader.encode_ids`."""
        return self._of(self._shared.encode_ids(ids), allow_zero)

    def at(self, precision: Precision | None) -> IdViewEncoder:
        """Return itself; a view has no lower precision."""
        if precision is not None:
            raise InputError(f"{self.name} has no precision {precision} at {self._view}: leave it out")
        return self


class SharedVectors:
    """Encodes every text and every list of ids once, and remembers the vectors.

    Args:
        encoder: from `whole_vectors`.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[Hashable, Vectors] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts, shape (n, d)."""
        return self._vectors(list(texts), self._encoder.encode)

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """Encode lists of content ids, shape (n, d)."""
        reader = require_ids(self._encoder, "a view of token ids")
        return self._vectors([tuple(each) for each in ids], reader.encode_ids)

    def _vectors(self, inputs: list[Any], encode: Callable[..., Vectors]) -> Vectors:
        new = [each for each in dict.fromkeys(inputs) if each not in self._known]
        if new:
            self._known.update(zip(new, encode(new, allow_zero=True), strict=True))
        empty = np.empty((0, self._encoder.dimension), np.float32)
        return np.stack([self._known[each] for each in inputs]) if inputs else empty


def view_encoders(model: Encoder, views: Views) -> dict[View, Encoder]:
    """Return an encoder for the model as it is and for every view that was asked for."""
    shared = SharedVectors(views.reading(model))
    kind = IdViewEncoder if reads_ids(model) else ViewEncoder
    return {view: kind(model, view, shared) for view in dict.fromkeys((views.own, *views.asked))}
