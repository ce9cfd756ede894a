"""Find or set the longest input of a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stickytoken.errors import InputError

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

_POSITION_EMBEDDINGS = ("position_embeddings", "embed_positions", "wpe")
# Tokenizers write "no limit" as a huge integer or as infinity.
_NO_LIMIT = 10**9


def maximum_length(model: SentenceTransformer) -> int | None:
    """Return the smallest of the truncation limits and the number of positions; None is no limit."""
    truncation = getattr(model.tokenizer, "truncation", None)
    limits = [
        model.max_seq_length,
        truncation["max_length"] if truncation else None,
        *learned_positions(model),
    ]
    return min((int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def require_length(max_length: int | None) -> None:
    """Refuse a longest input below one token."""
    if max_length is not None and max_length < 1:
        raise InputError(
            f"max_length is {max_length}: pass at least 1, or leave it out for the model's own limit"
        )


def set_maximum_length(model: SentenceTransformer, max_length: int, name: str, *, taken: int) -> None:
    """Set the longest input of a model to ``max_length`` tokens.

    Args:
        model: the model.
        max_length: longest input in tokens, including special tokens.
        name: name of the model in messages.
        taken: number of special tokens and prompt tokens in every input.
    """
    readable = min([*learned_positions(model), *declared_positions(model)], default=None)
    if readable is not None and max_length > readable:
        raise InputError(
            f"max_length is {max_length}: {name!r} has only {readable} positions; pass at most {readable}"
        )
    if max_length <= taken:
        raise InputError(
            f"max_length is {max_length}: the special tokens and the prompt of {name!r} take {taken} tokens, "
            "which leaves no room for a text; pass more"
        )
    with suppress(AttributeError):  # a static embedding has the property without a setter
        model.max_seq_length = max_length
    if model.max_seq_length != max_length:
        raise InputError(
            f"max_length is {max_length}: {name!r} reads texts of any length and has no limit to set; "
            "leave max_length out"
        )


def learned_positions(model: torch.nn.Module) -> list[int]:
    """Return the number of usable positions in each learned position embedding."""
    import torch

    found = []
    for name, module in model.named_modules():
        if name.endswith(_POSITION_EMBEDDINGS) and isinstance(module, torch.nn.Embedding):
            # RoBERTa counts positions from after the padding index, OPT from an offset.
            skipped = getattr(module, "offset", 0) if module.padding_idx is None else module.padding_idx + 1
            found.append(int(module.num_embeddings - skipped))
    return found


def declared_positions(model: torch.nn.Module) -> list[int]:
    """Return the number of positions in each backbone's configuration, except if they are scaled."""
    from transformers import PreTrainedModel

    found = []
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        declared: Any = getattr(module.config, "max_position_embeddings", None)
        # XLNet uses -1 for no limit.
        if isinstance(declared, int) and declared > 0 and not _stretched(module.config):
            found.append(declared)
    return found


def _stretched(config: Any) -> bool:
    """Check whether rotary positions are scaled, so that the configured number is not a limit."""
    rope: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return False
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))]  # one per kind of layer
    return any(kind.get("rope_type", kind.get("type", "default")) != "default" for kind in kinds)


def context_length(
    model: torch.nn.Module, tokenizer: Any, max_length: int | None, name: str, *, taken: int
) -> int | None:
    """Return the longest input of a prompted language model; None is no limit.

    Args:
        model: the decoder.
        tokenizer: its transformers tokenizer.
        max_length: the user's limit; None is the model's own.
        name: name of the model in messages.
        taken: length of the prompt without a sentence.
    """
    require_length(max_length)
    positions = min([*learned_positions(model), *declared_positions(model)], default=None)
    own = getattr(tokenizer, "model_max_length", None)
    limits = [limit for limit in (own, positions) if limit is not None and limit < _NO_LIMIT]
    if max_length is not None and positions is not None and max_length > positions:
        raise InputError(
            f"max_length is {max_length}: {name!r} has only {positions} positions; pass at most {positions}"
        )
    longest = min(limits, default=None) if max_length is None else max_length
    if longest is not None and longest <= taken:
        raise InputError(
            f"{name!r} reads {longest} tokens, and the prompt alone takes {taken}: use a shorter prompt"
        )
    return None if longest is None else int(longest)
