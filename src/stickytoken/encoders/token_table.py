"""The table of token vectors of a model, where the model declares one."""

from __future__ import annotations

from typing import Any

import torch


def token_table(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that maps token ids to vectors, or None if the model declares none.

    A static embedding has it as `embedding`. In a model of transformers, `get_input_embeddings` returns it,
    but that method is optional: models of several parts (CLIP) leave it to their text part, and others have
    no table at all (CANINE hashes code points).

    Args:
        model: a SentenceTransformer.
    """
    first: Any = model[0]  # type: ignore[index]
    backbone = getattr(first, "model", None)
    if backbone is None:
        return _as_table(getattr(first, "embedding", None))
    if not isinstance(backbone, torch.nn.Module):  # another runtime, such as ONNX
        return None
    declared = _declared_by(backbone)
    if declared is not None:
        return declared
    tables = [_declared_by(module) for module in backbone.modules()]
    distinct_tables = {id(table): table for table in tables if table is not None}
    if len(distinct_tables) != 1:  # if the parts have several, nothing says which of them reads the text
        return None
    return next(iter(distinct_tables.values()))


def table_rows(model: torch.nn.Module) -> int | None:
    """Return the number of ids that the model embeds, or None if it is unknown."""
    first: Any = model[0]  # type: ignore[index]
    if hasattr(first, "num_embeddings"):
        return int(first.num_embeddings)
    table: Any = token_table(model)
    return None if table is None else int(table.num_embeddings)


def _declared_by(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return what `get_input_embeddings` of a module returns, if that is a table."""
    method = getattr(module, "get_input_embeddings", None)
    if method is None:
        return None
    try:
        return _as_table(method())
    except (NotImplementedError, AttributeError):  # how models say that they have none
        return None


def _as_table(module: Any) -> torch.nn.Module | None:
    """Return the module if it is a table of rows by id, which the patches of an image are not."""
    is_table = isinstance(getattr(module, "num_embeddings", None), int)
    return module if is_table and isinstance(module, torch.nn.Module) else None
