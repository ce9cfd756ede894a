"""A model as a differentiable function of some rows of its embedding matrix."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stickytoken.encoders.model_state import exclusive
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import RepairError
from stickytoken.inspection.module_embedding import input_embeddings, sharing_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Largest relative difference between a scaled row and the output of the embedding.
_ROUNDING = 1e-3


class Network:
    """A frozen copy of a model in single precision; weights in single precision are shared, not copied.

    Args:
        model: the user's model; it is not changed.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        with exclusive(model):
            self._model = _frozen(model)
        self.encoder = SentenceTransformerEncoder(self._model, "the model", packed_layers=False)
        if self.encoder.template.flat:
            raise RepairError(
                "a static embedding model has no contexts to train a row in: use pieces or relatives"
            )
        embedding: Any = input_embeddings(self._model)
        self._embeddings = sharing_weights(self._model, embedding)
        self.table: torch.Tensor = embedding.weight.detach()
        self._scale = _scale_of(embedding)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.table.device

    def vectors(
        self, contents: Sequence[tuple[int, ...]], rows: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Compute unit vectors, differentiable in the rows.

        Args:
            contents: content ids of n texts of equal length.
            rows: rows of the embedding matrix, shape (T, D).
            places: the row at each position of the content, -1 for that of its id, shape (n, length).

        Returns:
            Shape (n, d).
        """
        template = self.encoder.template
        around = (len(template.before), len(template.after))
        whole = torch.nn.functional.pad(places.to(self.device), around, value=-1)
        with self._put_in(rows * self._scale, whole):
            found: torch.Tensor = self._model(self.encoder.features(contents))["sentence_embedding"]
        return torch.nn.functional.normalize(found[:, : self._model.truncate_dim], dim=1)

    @contextmanager
    def _put_in(self, embedded: torch.Tensor, places: torch.Tensor) -> Iterator[None]:
        """Replace the output of the embedding at some positions."""
        called: list[Any] = []
        own = (places >= 0)[..., None]
        chosen = embedded[places.clamp(min=0)]

        def put_in(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            del inputs
            called.append(module)
            return torch.where(own, chosen.to(output.dtype), output)

        handles = [module.register_forward_hook(put_in) for module in self._embeddings]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if not called:
            raise RepairError(
                "the model does not use the token embeddings that it declares: no row can be trained"
            )


def _frozen(model: SentenceTransformer) -> SentenceTransformer:
    """Copy a model without its weights, which are shared if they are in single precision."""
    shared = {
        id(parameter): torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
        for parameter in model.parameters()
    }
    found = copy.deepcopy(model, shared)
    return found.float().eval()


def _scale_of(embedding: Any) -> float:
    """Return what the embedding multiplies rows by."""
    sample = torch.arange(min(64, len(embedding.weight)), device=embedding.weight.device)
    rows, output = embedding.weight.detach()[sample], embedding(sample[None])[0].detach()
    scale = float((rows * output).sum() / (rows * rows).sum())
    if float((output - scale * rows).norm()) > _ROUNDING * float(output.norm()):
        raise RepairError(
            "the token embeddings of the model are not its rows times a number: use pieces or relatives"
        )
    return scale
