"""Determine how many tokens a model can read, from its number of positions and its tokenizer's limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stickytoken.errors import InputError

if TYPE_CHECKING:
    import torch

NO_LIMIT = 10**9
"""A length of at least this means "no limit", which tokenizers store as a huge integer or infinity."""

# Names that transformers gives to modules with learned position embeddings.
_POSITION_EMBEDDINGS = ("position_embeddings", "embed_positions", "wpe")


def find_learned_positions(model: torch.nn.Module) -> list[int]:
    """Return the maximum number of tokens that each table of learned position embeddings allows."""
    import torch

    positions: list[int] = []
    for name, module in model.named_modules():
        if not name.endswith(_POSITION_EMBEDDINGS) or not isinstance(module, torch.nn.Embedding):
            continue
        unused_rows = getattr(module, "offset", 0)  # OPT leaves the first rows unused
        if module.padding_idx is not None:  # in RoBERTa, positions begin at padding_idx + 1
            unused_rows = module.padding_idx + 1
        positions.append(int(module.num_embeddings - unused_rows))
    return positions


def readable_positions(model: torch.nn.Module, max_length: int | None, name: str) -> int | None:
    """Return how many tokens the position embeddings of a model allow; None if there is no limit.

    This is the smallest number of positions that a table of learned position embeddings or a configuration in
    the model has.

    Args:
        model: any torch model.
        max_length: maximum input length requested by the user, in tokens; None if the user requests none.
        name: name of the model, for the error message.

    Raises:
        InputError: `max_length` exceeds the number of positions.
    """
    from transformers import PreTrainedModel

    limits = find_learned_positions(model)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            configured_limit = _read_configured_positions(module.config)
            if configured_limit is not None:
                limits.append(configured_limit)
    positions = min(limits, default=None)
    if positions is not None and max_length is not None and max_length > positions:
        raise InputError(
            f"max_length is {max_length}: {name!r} has only {positions} positions; pass at most {positions}"
        )
    return positions


def _read_configured_positions(config: Any) -> int | None:
    declared = getattr(config, "max_position_embeddings", None)
    if not isinstance(declared, int) or declared <= 0:  # XLNet uses -1 for no limit
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return declared
    # The rotary settings either apply to all layers or are nested by kind of layer.
    settings_of_kinds = [value for value in rope.values() if isinstance(value, Mapping)]
    for settings in [rope, *settings_of_kinds]:
        rope_type = settings.get("rope_type", settings.get("type", "default"))
        if rope_type != "default":  # scaled rotary positions can exceed max_position_embeddings
            return None
    return declared
