"""Inspect the hidden states, attention weights and Jacobians of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stickytoken.encoders.protocol import IdEncoder
    from stickytoken.inspection.module_embedding import Inspector


__all__ = ["inspector_of"]


@runtime_checkable
class InspectableEncoder(Protocol):
    """An encoder that knows how to look inside its model."""

    def inspector(self) -> Inspector:
        """Return an inspector for the model."""


def inspector_of(encoder: IdEncoder) -> Inspector:
    """Return an inspector for the model of an encoder.

    Args:
        encoder: An encoder that wraps a SentenceTransformer or a prompted language model.

    Raises:
        ModelError: The encoder wraps neither a SentenceTransformer nor a prompted language model, so the
            internal states of the model cannot be read.

    Examples:
        >>> from stickytoken.inspection import inspector_of
        >>> inspector_of(model).embedding_matrix().shape
        (30522, 384)
    """
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.inspection.module_embedding import ModuleInspector

    if isinstance(encoder, SentenceTransformerEncoder):
        return ModuleInspector(encoder)
    if isinstance(encoder, InspectableEncoder):
        return encoder.inspector()
    raise ModelError(
        f"{encoder.name} is a {type(encoder).__name__}, which returns only vectors and gives no access to "
        "its model's internal states: pass a model that sentence-transformers can load, or a language model "
        "with a prompt"
    )


class AttributionMethod(StrEnum):
    """A method that divides the similarity of two texts among pairs of their parts."""

    DELETION = "deletion"  # Shapley values, computed by deleting parts of the text; no gradients needed
    JACOBIANS = "jacobians"  # Jacobians, integrated along the line from padding to the text


Watch: TypeAlias = Callable[[int, int], None]
"""A progress callback, which is called with the amount of finished work and the total amount of work."""


@dataclass(frozen=True, slots=True)
class Contributions:
    """The unit vector of a text as a sum of contributions: one from a reference, and one from each part."""

    vector: NDArray[np.float64]  # the unit vector, shape (d,)
    reference: NDArray[np.float64]  # contribution of the reference, which belongs to no part, shape (d,)
    parts: NDArray[np.float64]  # contribution of each part of the text, shape (parts, d)

    @property
    def error(self) -> float:
        """Euclidean distance between the unit vector and the sum of all contributions."""
        import numpy as np

        return float(np.linalg.norm(self.reference + self.parts.sum(axis=0) - self.vector))


def similarity_matrix(first: Contributions, second: Contributions) -> NDArray[np.float64]:
    """Divide the cosine of two texts among pairs of parts (Moeller, Nikolaev, Pado, EMNLP 2023, section 2).

    Returns:
        The contribution of each pair, shape (parts of the first text + 1, parts of the second text + 1). The
        last row belongs to the first text's reference, and the last column to the second text's reference.
    """
    import numpy as np

    # The cosine is the product of the unit vectors, and each of these is a sum over parts and reference.
    rows = np.vstack([first.parts, first.reference])
    columns = np.vstack([second.parts, second.reference])
    return rows @ columns.T
