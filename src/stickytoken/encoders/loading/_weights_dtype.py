"""Apply the requested precision to every module, not only to those that transformers loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

_SHOWN_REASON = 300


def set_precision(model: SentenceTransformer, dtype: str, name: str) -> None:
    """Convert the weights outside of transformers backbones to the precision of the backbones.

    sentence-transformers passes the precision only to transformers: a static embedding keeps that of its
    file, and so does a dense layer inside a router. Backbones are not changed: transformers keeps in float32
    what needs it (rotary tables, T5's output layers).
    """
    import torch
    from transformers import PreTrainedModel

    wanted = getattr(torch, dtype)
    inside: set[int] = set()
    for backbone in (module for module in model.modules() if isinstance(module, PreTrainedModel)):
        weights = [weight for weight in backbone.parameters() if weight.is_floating_point()]
        if weights and all(weight.dtype != wanted for weight in weights):
            found = str(weights[0].dtype).removeprefix("torch.")
            raise ModelError(
                f"{name!r} cannot be loaded in {dtype}: its {type(backbone).__name__} always loads in "
                f"{found}: pass {found}"
            )
        inside.update(map(id, backbone.parameters()))
    for weight in model.parameters():
        if weight.is_floating_point() and id(weight) not in inside:
            weight.data = weight.data.to(wanted)


def require_running(encoder: SentenceTransformerEncoder, dtype: str) -> None:
    """Encode one token, so that an unsupported precision is reported before a run starts."""
    import torch

    try:
        _ = encoder.dimension
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # raised by torch for an unsupported operation or mixture of types
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        raise ModelError(
            f"{encoder.name!r} does not support {dtype} on {encoder.device} ({reason}): use float32"
        ) from error
