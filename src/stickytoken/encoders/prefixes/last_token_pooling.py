"""Run SentenceTransformers with last-token pooling on trees of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stickytoken.encoders._template import InputTemplate
from stickytoken.encoders.prefixes.reuse import TreeModel, known_kind

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def reads_last_token(model: SentenceTransformer, template: InputTemplate) -> bool:
    """Check that the model is a known causal one with last-token pooling."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if len(model) < 2 or not isinstance(model[0], Transformer) or not isinstance(model[1], Pooling):
        return False
    text = model[0].modality_config.get("text", {})
    return (
        known_kind(model[0].model)
        and model[1].pooling_mode in ("lasttoken", ("lasttoken",), ["lasttoken"])
        and text.get("method") == "forward"
        and text.get("method_output_name") in ("last_hidden_state", ["last_hidden_state"])
        and template.token_types is None
        and not template.flat
        and (model[1].include_prompt or "prompt_length" not in dict(template.features))
    )


def tree_model(model: SentenceTransformer, template: InputTemplate) -> TreeModel:
    """Return the model for `PrefixReuse`; `reads_last_token` must hold."""
    backbone: Any = model[0].model

    def states(inputs: dict[str, Any]) -> torch.Tensor:
        found: torch.Tensor = backbone(**inputs).last_hidden_state
        return found

    def finish(picked: torch.Tensor) -> torch.Tensor:
        features: dict[str, Any] = dict(template.features)
        features["token_embeddings"] = picked
        features["attention_mask"] = torch.ones(picked.shape[:2], dtype=torch.long, device=picked.device)
        for module in list(model)[1:]:
            features = module(features)
        vectors: torch.Tensor = features["sentence_embedding"]
        return vectors if model.truncate_dim is None else vectors[:, : model.truncate_dim]

    return TreeModel(backbone, tuple(template.before), tuple(template.after), states, finish)
