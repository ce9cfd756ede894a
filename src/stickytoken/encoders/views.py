"""Views of a vector: its first components, at the model's output or after an earlier layer.

A vector holds all its truncations, and one forward pass holds the states after all layers. So the vectors of
all views come from one encoding: an encoder from `whole_vectors` puts them side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import EncodingError, InputError, ModelError


@dataclass(frozen=True, slots=True)
class View:
    """Some columns of the vectors of `whole_vectors`.

    Attributes:
        dimension: number of components.
        layer: layers that run, counted from 1; None is the model as it is.
        start: first column.
    """

    dimension: int
    layer: int | None = None
    start: int = 0

    @property
    def key(self) -> str:
        """A name for files and columns."""
        return f"{self.dimension}" if self.layer is None else f"layer{self.layer}-{self.dimension}"

    def __str__(self) -> str:
        return (
            f"dimension {self.dimension}"
            if self.layer is None
            else f"layer {self.layer}, dimension {self.dimension}"
        )

    def is_at(self, dimension: int, layer: int | None = None) -> bool:
        """Whether this is the view of a dimension and layer."""
        return (self.dimension, self.layer) == (dimension, layer)

    def of(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return this view's part of vectors of `whole_vectors`, shape (n, dimension)."""
        return vectors[:, self.start : self.start + self.dimension]

    def units(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return this view's part, scaled to length 1.

        Args:
            vectors: of `whole_vectors`, shape (n, any).

        Raises:
            EncodingError: a part is zero or not finite.
        """
        part = self.of(vectors)
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        if not (usable := np.isfinite(lengths) & (lengths > 0)).all():
            what = "zero" if (lengths[~usable] == 0).all() else "not finite"
            raise EncodingError(
                f"{int((~usable).sum())} of {len(part)} vectors are {what} at {self}: they have no "
                "similarity to anything, so leave it out"
            )
        units: NDArray[np.float32] = part / lengths
        return units


@dataclass(frozen=True, slots=True)
class Views:
    """The views that a measurement is made in.

    Attributes:
        layers: whose vectors `whole_vectors` must give.
        own: the model as it is.
        whole: the same without truncation; the same view where the model does not truncate.
        asked: further ones that the user named; the model as it is may be among them.
    """

    layers: tuple[int, ...]
    own: View
    whole: View
    asked: tuple[View, ...]

    @property
    def further(self) -> tuple[View, ...]:
        """Every view but the model as it is."""
        return tuple(dict.fromkeys(view for view in (self.whole, *self.asked) if view != self.own))

    def reading(self, encoder: Encoder) -> Encoder:
        """Return the encoder whose vectors have all views: the model itself where it has no further one."""
        return whole_vectors(encoder, self.layers) if self.further else encoder


def only_own(encoder: Encoder) -> Views:
    """Return the views of a measurement of the model as it is."""
    own = View(encoder.dimension)
    return Views((), own, own, ())


def views_of(encoder: Encoder, dimensions: Sequence[int] = (), layers: Sequence[int] = ()) -> Views:
    """Return the views of a model that a user names.

    Args:
        encoder: the model.
        dimensions: numbers of components; without any, the model's own.
        layers: numbers of layers, counted from 1; without any, the model as it is.

    Raises:
        InputError: the model has no such dimension or layer.
        ModelError: its layers cannot be read.
    """
    own = encoder.dimension
    _require_dimensions(encoder, dimensions, own)
    wide = whole_vectors(encoder, tuple(layers))
    width = wide.dimension // (1 + len(layers))
    last = getattr(wide, "layer_count", None)
    asked = [
        View(dimension) if layer is None or layer == last else View(dimension, layer, (place + 1) * width)
        for place, layer in enumerate(layers or (None,))
        for dimension in (dimensions or (own,))
    ]
    named = bool(dimensions or layers)
    return Views(tuple(layers), View(own), View(width), tuple(asked) if named else ())


def whole_vectors(encoder: Encoder, layers: tuple[int, ...] = ()) -> Encoder:
    """Return an encoder of whole vectors, and behind each those of some layers.

    Args:
        encoder: the model; one that computes elsewhere gives what it gives, as a whole.
        layers: numbers of layers, counted from 1.

    Raises:
        InputError: the model has no such layer.
        ModelError: its layers cannot be read.
    """
    whole = getattr(encoder, "whole", None)
    if whole is not None:
        found: Encoder = whole(layers)
        return found
    if layers:
        raise ModelError(
            f"the layers of {encoder.name} cannot be read: --layers needs a SentenceTransformer on this "
            "machine, without a prompt for language models, so leave it out"
        )
    return encoder


def _require_dimensions(encoder: Encoder, dimensions: Sequence[int], own: int) -> None:
    if (largest := max(dimensions, default=0)) > own:
        untruncated = whole_vectors(encoder).dimension
        why = f", because it truncates them from {untruncated}" if untruncated > own else ""
        raise InputError(
            f"dimensions include {largest}, and the vectors of {encoder.name} have {own} components{why}: "
            f"use at most {own}"
        )
