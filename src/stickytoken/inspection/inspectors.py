"""Who looks into which kind of encoder."""

from __future__ import annotations

from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import ModelError
from stickytoken.inspection.modules import ModuleInspector
from stickytoken.inspection.prompted import PromptInspector
from stickytoken.inspection.protocol import Inspector


def inspector_of(encoder: IdEncoder) -> Inspector:
    """An inspector of an encoder's model.

    Raises:
        ModelError: the encoder does not let anyone look inside.
    """
    if isinstance(encoder, SentenceTransformerEncoder):
        return ModuleInspector(encoder)
    if isinstance(encoder, CausalPromptEncoder):
        return PromptInspector(encoder)
    raise ModelError(
        f"{encoder.name} is a {type(encoder).__name__}, which shows vectors only: pass a model that "
        "sentence-transformers loads, or a language model with a prompt"
    )
