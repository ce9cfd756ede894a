"""The asked precision in every module, not only in those that transformers loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

_SHOWN_REASON = 300


def set_precision(model: SentenceTransformer, dtype: str, name: str) -> None:
    """Give the weights outside the transformers backbones the precision that these were loaded in.

    sentence-transformers hands the precision to transformers alone: a static embedding keeps
    that of its file, and so does a dense layer inside a router. Inside a backbone nothing is
    changed: transformers keeps in float32 what needs it (rotary tables, T5's output layers).

    Raises:
        ModelError: a backbone has no weight in the asked precision.
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
                f"{name!r} was asked for in {dtype}, but its {type(backbone).__name__} loads in {found} "
                f"whatever is asked: pass {found}"
            )
        inside.update(map(id, backbone.parameters()))
    for weight in model.parameters():
        if weight.is_floating_point() and id(weight) not in inside:
            weight.data = weight.data.to(wanted)


def require_running(encoder: SentenceTransformerEncoder, dtype: str) -> None:
    """Encode one token, so that a module without the asked precision shows before a run starts.

    Raises:
        ModelError: the model does not compute in this precision on its device.
    """
    import torch

    try:
        _ = encoder.dimension
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # what torch raises for an operation or a mixture that it lacks
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        raise ModelError(
            f"{encoder.name!r} does not compute in {dtype} on {encoder.device} ({reason}): use float32"
        ) from error
