"""Look inside a model: hidden states, attention weights, and what each part of a text contributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stickytoken.errors import ModelError

if TYPE_CHECKING:
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
