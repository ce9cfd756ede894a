"""Views of a vector: its first components, at the model's output or after an earlier layer.

A vector holds all its truncations, and one forward pass holds the states after all layers. So the vectors of
all views come from one encoding: an encoder from `whole_vectors` puts them side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, EncoderWrapper, reads_ids, require_ids
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.machine import Precision
from stickytoken.unit_vectors import exact_unit_vectors


@dataclass(frozen=True, slots=True)
class View:  # some columns of the vectors of `whole_vectors`
    dimension: int
    layer: int | None = None  # layers that run, counted from 1; None is the model as it is
    start: int = 0  # first column

    @property
    def key(self) -> str:
        return f"{self.dimension}" if self.layer is None else f"layer{self.layer}-{self.dimension}"

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"layer {self.layer}, "
        return f"{layer}dimension {self.dimension}"

    def is_at(self, dimension: int, layer: int | None = None) -> bool:
        return (self.dimension, self.layer) == (dimension, layer)

    def of(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return vectors[:, self.start : self.start + self.dimension]

    def units(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
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
    layers: tuple[int, ...]  # whose vectors `whole_vectors` must give
    own: View  # the model as it is
    whole: View  # the same without truncation; the same view where the model does not truncate
    asked: tuple[View, ...]  # those that the user named; the model as it is may be among them

    @property
    def further(self) -> tuple[View, ...]:
        return tuple(dict.fromkeys(view for view in (self.whole, *self.asked) if view != self.own))

    def reading(self, encoder: Encoder) -> Encoder:
        return whole_vectors(encoder, self.layers) if self.further else encoder


def only_own(encoder: Encoder) -> Views:
    own = View(encoder.dimension)
    return Views((), own, own, ())


def views_of(encoder: Encoder, dimensions: Sequence[int] = (), layers: Sequence[int] = ()) -> Views:
    own = encoder.dimension
    wide = whole_vectors(encoder, tuple(layers))
    width = wide.dimension // (1 + len(layers))
    if (largest := max(dimensions, default=0)) > own:
        why = f", because it truncates them from {width}" if width > own else ""
        raise InputError(
            f"dimensions include {largest}, and the vectors of {encoder.name} have {own} components{why}: "
            f"use at most {own}"
        )
    last = getattr(wide, "layer_count", None)
    asked = [
        View(dimension) if layer is None or layer == last else View(dimension, layer, (place + 1) * width)
        for place, layer in enumerate(layers or (None,))
        for dimension in (dimensions or (own,))
    ]
    named = bool(dimensions or layers)
    return Views(tuple(layers), View(own), View(width), tuple(asked) if named else ())


def whole_vectors(encoder: Encoder, layers: tuple[int, ...] = ()) -> Encoder:
    if hasattr(encoder, "whole"):
        found: Encoder = encoder.whole(layers)
        return found
    if layers:
        raise ModelError(
            f"the layers of {encoder.name} cannot be read: --layers needs a SentenceTransformer on this "
            "machine, without a prompt for language models, so leave it out"
        )
    return encoder


Vectors = NDArray[np.float32]


class ViewEncoder(EncoderWrapper[Any]):
    """Encodes texts in one view; ``known`` remembers the vectors of ``whole`` for all views of a model."""

    def __init__(self, model: Encoder, view: View, whole: Encoder, known: dict[Hashable, Vectors]) -> None:
        super().__init__(model)
        self.model = model
        self._view, self._whole, self._known = view, whole, known

    @property
    def makes_up_vectors(self) -> bool:
        return bool(getattr(self.model, "makes_up_vectors", False))

    @property
    def dimension(self) -> int:
        return self._view.dimension

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> Vectors:
        return self._vectors(list(texts), self._whole.encode, allow_zero)

    def _vectors(self, inputs: list[Any], encode: Callable[..., Vectors], allow_zero: bool) -> Vectors:
        new = [each for each in dict.fromkeys(inputs) if each not in self._known]
        if new:
            self._known.update(zip(new, encode(new, allow_zero=True), strict=True))
        if not inputs:
            return np.empty((0, self.dimension), np.float32)
        vectors = np.stack([self._known[each] for each in inputs])
        if not allow_zero:
            self._view.units(vectors)  # refuses zero vectors
        return self._view.of(vectors)


class IdViewEncoder(ViewEncoder):
    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> Vectors:
        reader = require_ids(self._whole, "a view of token ids")
        return self._vectors([tuple(each) for each in ids], reader.encode_ids, allow_zero)

    def at(self, precision: Precision | None) -> IdViewEncoder:
        if precision is not None:
            raise InputError(f"{self.name} has no precision {precision} at {self._view}: leave it out")
        return self


def view_encoders(model: Encoder, views: Views) -> dict[View, Encoder]:
    whole, known = views.reading(model), dict[Hashable, Vectors]()
    kind = IdViewEncoder if reads_ids(model) else ViewEncoder
    return {view: kind(model, view, whole, known) for view in dict.fromkeys((views.own, *views.asked))}


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: number of vocabulary entries used.
        left_out: number of entries that tokenize to nothing or to more than the model reads, or whose vector
            is zero.
        error: standard error of the value; 0 if all entries were encoded.
        isoscore: how evenly the same vectors use all dimensions, from 0 (one) to 1 (all alike); see
            `isoscore`.
    """

    value: float
    entries: int
    left_out: int
    error: float = 0.0
    isoscore: float | None = None


def isoscore(covariance: NDArray[np.float64]) -> float | None:
    """How evenly vectors use their dimensions: 0 if one has all the variance, 1 if all have the same."""
    # Rudman et al., "IsoScore: Measuring the Uniformity of Embedding Space Utilization" (Findings of ACL
    # 2022), section 4. None if there is one dimension, or if nothing varies.
    size = len(covariance)
    variances = np.maximum(np.linalg.eigvalsh(covariance), 0.0)  # along the principal components
    length = float(np.linalg.norm(variances))
    if size < 2 or length == 0:
        return None
    defect = np.linalg.norm(np.sqrt(size) * variances / length - 1) / np.sqrt(2 * (size - np.sqrt(size)))
    used = (size - defect**2 * (size - np.sqrt(size))) ** 2 / size**2
    return float((size * used - 1) / (size - 1))


def mean_similarity(
    encoder: Encoder,
    progress: Callable[[int, int], None] | None = None,
    *,
    chunk: int = 4096,
    most: int | None = None,
) -> MeanSimilarity:
    """Compute u: the mean cosine over all ordered pairs of vocabulary embeddings.

    Every vocabulary string is encoded as a text, as the published values were
    (Chen et al. 2025). The mean over all V x V pairs, each entry with itself
    included, is the squared norm of the mean unit vector: O(V d) time, O(d) memory. The covariance
    of the same vectors, for the IsoScore, takes O(V d^2) and O(d^2).

    Args:
        encoder: the model.
        progress: called with the entries done and the total, first with 0 done.
        chunk: entries encoded at a time.
        most: encode at most this many entries, and estimate u from this fixed random sample.

    Raises:
        EncodingError: No entry can be encoded.
    """
    (found,) = mean_similarities(encoder, [View(encoder.dimension)], progress, chunk=chunk, most=most)
    return found


def mean_similarities(
    encoder: Encoder,
    views: Sequence[View],
    progress: Callable[[int, int], None] | None = None,
    *,
    chunk: int = 4096,
    most: int | None = None,
) -> list[MeanSimilarity]:
    progress = progress or (lambda done, total: None)
    strings = list(encoder.tokenizer.entries.values())
    entries = len(strings)
    sampled = most is not None and most < entries
    if sampled:
        places = np.sort(np.random.default_rng(4).permutation(entries)[:most])
        strings = [strings[place] for place in places.tolist()]
    totals = [np.zeros(view.dimension) for view in views]
    products = [np.zeros((view.dimension, view.dimension)) for view in views]
    used = [0] * len(views)
    kept: list[list[NDArray[np.float64]]] = [[] for _ in views]
    progress(0, len(strings))
    for start in range(0, len(strings), chunk):
        # Of the strings, those that the model reads in full.
        part = strings[start : start + chunk]
        ids = encoder.content_ids(part)
        usable = [place for place, row in enumerate(ids) if row and encoder.fits(row)]
        if reads_ids(encoder):
            vectors = encoder.encode_ids([ids[place] for place in usable], allow_zero=True)
        else:
            vectors = encoder.encode([part[place] for place in usable], allow_zero=True)
        for place, view in enumerate(views):
            units = exact_unit_vectors(view.of(vectors))
            units = units[units.any(axis=1)]
            totals[place] += units.sum(axis=0)
            used[place] += len(units)
            if sampled:
                kept[place].append(units)
            else:
                products[place] += units.T @ units
        progress(min(start + chunk, len(strings)), len(strings))
    if sampled:
        return [_estimated(encoder, np.concatenate(units), len(strings), entries) for units in kept]
    found = []
    for view, total, product, count in zip(views, totals, products, used, strict=True):
        if count == 0:
            where = f" with a vector that is not zero at {view}" if max(used) else ""
            raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded{where}")
        mean = total / count
        evenness = isoscore(product / count - np.outer(mean, mean))
        found.append(MeanSimilarity(float(mean @ mean), count, entries - count, isoscore=evenness))
    return found


def _estimated(encoder: Encoder, vectors: NDArray[np.float64], drawn: int, entries: int) -> MeanSimilarity:
    """Estimate u from a random sample, with the standard error of a U-statistic (Hoeffding 1948)."""
    count = len(vectors)
    if count < 2:
        raise EncodingError(f"{encoder.name}: of {drawn:,} random vocabulary entries, {count} can be encoded")
    mean = vectors.mean(axis=0)
    of_two = (count * float(mean @ mean) - 1) / (count - 1)  # of two different entries
    value = of_two + (1 - of_two) / entries  # an entry is paired with itself, too
    error = 2 * float((vectors @ mean).std(ddof=1)) * np.sqrt((1 - count / entries) / count)
    covariance = vectors.T @ vectors / count - np.outer(mean, mean)
    return MeanSimilarity(value, count, drawn - count, float(error), isoscore(covariance))
