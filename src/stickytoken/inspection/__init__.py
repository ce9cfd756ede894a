"""Look inside a model: hidden states, attention weights, Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stickytoken.encoders.protocol import IdEncoder
    from stickytoken.inspection.module_embedding import Inspector


__all__ = ["inspector_of"]


def inspector_of(encoder: IdEncoder) -> Inspector:
    """Return an inspector of an encoder's model.

    Args:
        encoder: a SentenceTransformer or a prompted language model.

    Raises:
        ModelError: the encoder does not show the inside of its model.
    """
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.inspection.module_embedding import ModuleInspector, PromptInspector

    if isinstance(encoder, SentenceTransformerEncoder):
        return ModuleInspector(encoder)
    if isinstance(encoder, CausalPromptEncoder):
        return PromptInspector(encoder)
    raise ModelError(
        f"{encoder.name} is a {type(encoder).__name__}, which returns vectors and does not show the inside "
        "of its model: pass a model that sentence-transformers loads, or a language model with a prompt"
    )


class AttributionMethod(StrEnum):
    """How a similarity is divided among pairs of parts."""

    DELETION = "deletion"  # Shapley values: parts are deleted in random orders; needs no gradients
    JACOBIANS = "jacobians"  # integrated Jacobians, from a text of padding to the text


Watch: TypeAlias = Callable[[int, int], None]  # called with how much is computed, and of how much


@dataclass(frozen=True, slots=True)
class Contributions:
    """The unit vector of a text as a sum, up to the error of the method."""

    vector: NDArray[np.float64]  # the unit vector, shape (d,)
    reference: NDArray[np.float64]  # what no part of the text contributes, shape (d,)
    parts: NDArray[np.float64]  # contribution of each part of the text, shape (parts, d)

    @property
    def error(self) -> float:
        """Distance of the sum from the unit vector."""
        import numpy as np

        return float(np.linalg.norm(self.reference + self.parts.sum(axis=0) - self.vector))


def similarity_matrix(first: Contributions, second: Contributions) -> NDArray[np.float64]:
    """Return the cosine of two texts by pairs of parts: Moeller, Nikolaev, Pado (EMNLP 2023), section 2."""
    import numpy as np

    rows = np.vstack([first.parts, first.reference])
    columns = np.vstack([second.parts, second.reference])
    return rows @ columns.T
