"""Find, read and replace the token embeddings of a SentenceTransformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import ModelError
from stickytoken.inspection._embedded_text import EmbeddedText


def backbone_of(model: Any) -> Any:
    """Return the transformers model in the first module; None without one."""
    return getattr(model[0], "model", None)


def input_embeddings(model: Any) -> Any:
    """Return the module that embeds token ids; None if it is unknown."""
    backbone = backbone_of(model)
    if backbone is None:
        return getattr(model[0], "embedding", None)
    return backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else None


def embedded_text(encoder: SentenceTransformerEncoder, content: Sequence[int]) -> EmbeddedText:
    """Return a text as embeddings.

    Raises:
        ModelError: The token embeddings of the model cannot be reached.
    """
    model, ids, template = encoder.model, tuple(content), encoder.template
    embeddings = input_embeddings(model)
    if embeddings is None:
        raise ModelError(f"{encoder.name}: its token embeddings cannot be reached")
    features = encoder.features([ids])
    flat = template.flat
    rows = _rows(embeddings, features["input_ids"].reshape(-1), flat=flat)
    places = torch.full((len(rows),), -1, device=rows.device)
    before = 0 if flat else len(template.before)
    places[before : before + len(ids)] = torch.arange(len(ids), device=rows.device)

    def vectors(changed: torch.Tensor) -> torch.Tensor:
        if flat:
            return _vectors(encoder, embeddings, features, changed.mean(dim=1))
        repeated = {
            key: value.expand(len(changed), *value.shape[1:]) if torch.is_tensor(value) else value
            for key, value in features.items()
        }
        return _vectors(encoder, embeddings, repeated, changed)

    return EmbeddedText(rows, _filler(model, embeddings, rows, flat=flat), places, vectors)


def _vectors(
    encoder: SentenceTransformerEncoder, embeddings: Any, features: dict[str, Any], embedded: torch.Tensor
) -> torch.Tensor:
    """Compute vectors before any final normalisation, with the given output of the embeddings."""
    model = encoder.model
    before: list[torch.Tensor] = []
    called: list[Any] = []

    def replace(module: Any, inputs: Any, output: Any) -> torch.Tensor:
        del inputs, output
        called.append(module)
        return embedded

    handles = [module.register_forward_hook(replace) for module in sharing_weights(model, embeddings)]
    if (last := _last_normalize(model)) is not None:
        handles.append(
            last.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]["sentence_embedding"]))
        )
    try:
        found = model(features)["sentence_embedding"]
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise ModelError(f"{encoder.name}: it does not use the token embeddings that it declares")
    found = before[-1] if before else found
    truncated: torch.Tensor = found[:, : model.truncate_dim]
    return truncated


def sharing_weights(model: Any, embeddings: Any) -> list[Any]:
    """Find all modules with the weights of one: T5 has several, and calls another than it declares."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [
        module
        for module in model.modules()
        if isinstance(module, kinds) and module.weight is embeddings.weight
    ]


def _last_normalize(model: Any) -> Any:
    """Return the first of the normalisations at the end of the model."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    modules: list[Any] = list(model)
    first = None
    while modules and isinstance(modules[-1], Normalize):
        first = modules.pop()
    return first


def _rows(embeddings: Any, ids: torch.Tensor, *, flat: bool) -> torch.Tensor:
    """Embed token ids, shape (T, D)."""
    # Not always equal to the weights: some models scale them here.
    found: torch.Tensor = embeddings.weight.detach()[ids] if flat else embeddings(ids[None])[0]
    return found


def _filler(model: Any, embeddings: Any, rows: torch.Tensor, *, flat: bool) -> torch.Tensor:
    token_id = getattr(model.tokenizer, "pad_token_id", None)
    if token_id is None or not 0 <= token_id < len(embeddings.weight):
        return torch.zeros_like(rows[0])
    return _rows(embeddings, torch.tensor([token_id], device=rows.device), flat=flat)[0]
