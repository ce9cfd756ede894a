"""Look inside a model: hidden states, attention weights, Jacobians."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from stickytoken.encoders.protocol import IdEncoder
    from stickytoken.inspection.protocol import Inspector

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
    from stickytoken.inspection._modules import ModuleInspector
    from stickytoken.inspection._prompted import PromptInspector

    if isinstance(encoder, SentenceTransformerEncoder):
        return ModuleInspector(encoder)
    if isinstance(encoder, CausalPromptEncoder):
        return PromptInspector(encoder)
    raise ModelError(
        f"{encoder.name} is a {type(encoder).__name__}, which returns vectors and does not show the inside "
        "of its model: pass a model that sentence-transformers loads, or a language model with a prompt"
    )
