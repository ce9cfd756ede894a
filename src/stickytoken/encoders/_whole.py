"""Whole vectors of a SentenceTransformer that truncates them, and the vectors after some of its layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._batch_runner import BatchRunner
from stickytoken.encoders._layers import LayerReader
from stickytoken.encoders.cpu.openvino_backbone import CompiledBackbone
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.precision import Precision

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer


class WholeEncoder(SentenceTransformerEncoder):
    """Encodes with the modules of a SentenceTransformer, without truncation.

    Args:
        model: the model; its modules are shared, not copied.
        name: name of the model in messages.
        layers: layers whose vectors are put behind the model's own, counted from 1.
        options: as for `SentenceTransformerEncoder`.
    """

    def __init__(
        self, model: SentenceTransformer, name: str, *, layers: Sequence[int], **options: Any
    ) -> None:
        untruncated = copy.copy(model)
        untruncated.truncate_dim = None
        self._reader = LayerReader(untruncated, tuple(layers), name) if layers else None
        if layers:  # shared beginnings are computed for the last layer alone
            options["reuse"] = None
        super().__init__(untruncated, name, **options)

    @property
    def layer_count(self) -> int | None:
        """Number of layers; None where none are read."""
        return None if self._reader is None else self._reader.count

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        """Return an encoder of whole vectors; see `whole_vectors`."""
        same = layers == (() if self._reader is None else self._reader.layers)
        return self if same else super().whole(layers)

    @cached_property
    def dimension(self) -> int:
        """Number of components of a vector, those of the layers included."""
        if self._reader is None:
            return super().dimension
        with self._reader.keeping_states():
            return super().dimension

    @cached_property
    def _compiled(self) -> CompiledBackbone | None:
        return None if self._reader is not None else super()._compiled  # it returns the last layer alone

    def _read(self) -> None:
        super()._read()
        if self._reader is not None:
            self._runner = _LayerRunner(
                self._model, self._template, self.name, self._token_budget, reader=self._reader
            )

    def _built(self, precision: Precision) -> WholeEncoder:
        layers = () if self._reader is None else self._reader.layers
        return WholeEncoder(self._model, self.name, layers=layers, **self._options(precision))


class _LayerRunner(BatchRunner):
    """Runs contents through a model, and keeps the vectors after some layers."""

    def __init__(self, *arguments: Any, reader: LayerReader) -> None:
        super().__init__(*arguments)
        self._reader = reader

    def vectors(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32] | None:
        """Compute the vectors of contents; see `BatchRunner.vectors`."""
        with self._reader.keeping_states():
            return super().vectors(contents)

    def launch(self, contents: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Start computing contents of equal length; see `BatchRunner.launch`."""
        return self._reader.vectors(self.features(contents))
