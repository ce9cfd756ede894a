"""Find the table of token vectors in a model."""

from __future__ import annotations

from typing import Any

import torch


def token_table(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that maps token ids to vectors.

    In a static embedding model, the table is the attribute `embedding` of the first module. In a transformers
    model, the method `get_input_embeddings` returns the table. If the method of the whole model returns no
    table, as in CLIP, the methods of the model's modules are called. CANINE has no table, because it computes
    the vectors of code points from hashes.

    Args:
        model: a SentenceTransformer.

    Returns:
        The table; None if the model declares no table, or several tables.
    """
    first: Any = model[0]  # type: ignore[index]
    backbone = getattr(first, "model", None)
    if backbone is None:
        return _as_table(getattr(first, "embedding", None))
    if not isinstance(backbone, torch.nn.Module):  # a model in another runtime, such as ONNX
        return None
    declared = _find_declared(backbone)
    if declared is not None:
        return declared
    tables = [_find_declared(module) for module in backbone.modules()]
    # Several modules may declare the same table.
    distinct_tables = {id(table): table for table in tables if table is not None}
    if len(distinct_tables) != 1:  # with several tables, it is unknown which one embeds the text
        return None
    return next(iter(distinct_tables.values()))


def table_rows(model: torch.nn.Module) -> int | None:
    """Return the number of token ids that the model has vectors for; None if it is unknown."""
    first: Any = model[0]  # type: ignore[index]
    if hasattr(first, "num_embeddings"):  # a static embedding
        return int(first.num_embeddings)
    table: Any = token_table(model)
    return None if table is None else int(table.num_embeddings)


def _find_declared(module: torch.nn.Module) -> torch.nn.Module | None:
    # Returns the table that a module of a transformers model declares.
    get_table = getattr(module, "get_input_embeddings", None)
    if get_table is None:
        return None
    try:
        return _as_table(get_table())
    except (NotImplementedError, AttributeError):  # raised by models without a table
        return None


def _as_table(module: Any) -> torch.nn.Module | None:
    # Image patch embeddings, for example, have no row for each token id.
    is_table = isinstance(getattr(module, "num_embeddings", None), int)
    return module if is_table and isinstance(module, torch.nn.Module) else None
