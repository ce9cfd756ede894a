"""Find the stored token embeddings of a model, and write new rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stickytoken.encoders.files.stored_rows import (
    FLOATING_TYPES,
    StoredTensor,
    TokenRows,
    read_stored_tensors,
    static_rows,
)
from stickytoken.encoders.files.tokenizer_loading import text_module
from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit import SHOWN_ERROR

# Maximum number of tensors that an error message names.
_NAMED_TENSORS = 5


def find_token_tables(folder: Path, route: str | None) -> list[TokenRows]:
    """Find the stored token embeddings in a model's folder.

    Args:
        folder: folder of the model.
        route: route whose embeddings are returned, if the model has several. If None, the default route is
            used.

    Returns:
        One table, or several if the weight files store the embeddings more than once.

    Raises:
        ModelError: the folder has no tokenizer.
        RepairError: the folder has no table of token embeddings, or no row can be written into the table.
    """
    # A module may have a folder of its own.
    for adapter in (folder / "adapter_config.json", *folder.glob("*/adapter_config.json")):
        if adapter.is_file():
            raise RepairError(
                f"{adapter.parent} holds an adapter, not complete weights: merge it into its base model "
                "(merge_and_unload of peft), save the merged model, and repair that"
            )
    # The folder of the module that reads texts holds the tokenizer and the token embeddings.
    module = text_module(folder, str(folder), route)
    # A transformers model without a list of modules has no class name.
    is_transformer = module.class_name == "" or module.class_name.endswith("Transformer")
    if not (module.is_static or is_transformer):
        raise RepairError(f"{module.folder} has no token embeddings: it is a {module.class_name}")
    tensors = _read_tensors(module.folder)
    if not tensors:
        raise RepairError(
            f"the weights in {module.folder} are not stored as safetensors: load the model and save it with "
            "sentence-transformers, and repair the saved model"
        )
    if module.is_static:
        static = static_rows(tensors)
        if static is None:
            raise RepairError(f"the weights in {module.folder} contain no token embeddings of a static model")
        tables = [static]
    else:
        tables = [TokenRows(matrix) for matrix in _find_stored_inputs(module.folder, tensors)]
    for table in tables:
        if table.dtype not in FLOATING_TYPES:
            raise RepairError(
                f"the embeddings in {table.matrix.file} are stored as {table.dtype}: rows can be written "
                f"into {', '.join(FLOATING_TYPES)}; repair the model before it is quantized"
            )
    return tables


def _find_stored_inputs(module: Path, tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Return the stored tensors with the shape and a name of the input embeddings that transformers builds.

    If no tensor of this shape has such a name, but there is only one, this tensor is returned.
    """
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(str(module), local_files_only=True)
        with torch.device("meta"):  # builds the model without weights
            model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        embeddings = model.get_input_embeddings().weight
    except Exception as error:  # architectures raise different errors for an invalid configuration
        reason = " ".join(str(error).split())[:SHOWN_ERROR]
        raise RepairError(f"the model in {module} cannot be built by transformers: {reason}") from error
    # All parameters that share the weights of the input embeddings.
    names = [name for name, weight in model.named_parameters(remove_duplicate=False) if weight is embeddings]
    shape = tuple(embeddings.shape)
    tensors_of_shape = [tensor for tensor in tensors if tensor.shape == shape]

    def has_matching_name(tensor: StoredTensor) -> bool:
        # In a weight file, the name of a parameter may be prefixed with the name of an enclosing model, or
        # lack the prefix that the parameter has in the model that transformers builds. The dots make sure
        # that whole parts of the names are compared.
        dotted = f".{tensor.name}"
        return any(dotted.endswith(f".{name}") or f".{name}".endswith(dotted) for name in names)

    named_tensors = [tensor for tensor in tensors_of_shape if has_matching_name(tensor)]
    if not named_tensors and len(tensors_of_shape) != 1:  # neither the names nor the shape decide
        listed = ", ".join(tensor.name for tensor in tensors_of_shape[:_NAMED_TENSORS]) or "none"
        raise RepairError(
            f"the input embeddings in {module} were not found: its configuration requires the shape "
            f"{shape}, and the stored tensors with this shape are {listed}"
        )
    return named_tensors or tensors_of_shape


def _read_tensors(module: Path) -> list[StoredTensor]:
    weights = module / "model.safetensors"
    index = module / "model.safetensors.index.json"
    if weights.is_file():
        return read_stored_tensors(weights)
    if not index.is_file():
        return []
    file_by_tensor: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
    tensors: list[StoredTensor] = []
    for name in sorted(set(file_by_tensor.values())):
        file = module / name
        if not file.is_file():
            raise RepairError(f"{module} is incomplete: {index.name} names {name}, which is missing")
        tensors += read_stored_tensors(file)
    return tensors


def write_rows(
    source: Path, target: Path, tables: Sequence[TokenRows], rows: Mapping[int, NDArray[np.float32]]
) -> None:
    """Write a copy of a weight file with new rows.

    In a folded table, several tokens share a stored row, or rows have weights, so no row can be overwritten
    for a single token. A folded table is replaced by a table with a separate, unweighted row for every token.

    Args:
        source: the original weight file.
        target: path of the copy.
        tables: the tables of token embeddings in the file. If a table is folded, the file has no other table
            of token embeddings.
        rows: the new rows, keyed by token id, each of shape (D,).

    Raises:
        RepairError: a row does not fit its table.
    """
    rows_by_table = {table.matrix.name: _convert_rows(rows, table) for table in tables}
    folded_tables = [table for table in tables if table.folded]
    if folded_tables:
        (folded_table,) = folded_tables  # the only table, see above
        _write_with_a_row_per_token(target, folded_table, rows_by_table[folded_table.matrix.name])
    else:
        shutil.copyfile(source, target)
        with target.open("r+b") as stream:  # overwrites bytes in place
            for table in tables:
                for token_id, row in rows_by_table[table.matrix.name].items():
                    stream.seek(table.matrix.start + token_id * table.matrix.row_bytes)
                    row_as_bytes = row.view(torch.uint8)  # because numpy has no bfloat16
                    stream.write(row_as_bytes.numpy().tobytes())
    shutil.copymode(source, target)


def _convert_rows(rows: Mapping[int, NDArray[np.float32]], table: TokenRows) -> dict[int, torch.Tensor]:
    type_name = FLOATING_TYPES[table.dtype]
    converted_rows = {}
    for token_id, row in rows.items():
        if row.shape != (table.width,):
            raise RepairError(
                f"the row of token {token_id} has the shape {row.shape}, but the rows of {table.matrix.name} "
                f"have {table.width} numbers"
            )
        # Copy the row, because torch warns about a read-only array.
        converted_row = torch.from_numpy(row.copy()).to(getattr(torch, type_name))
        if not bool(converted_row.isfinite().all()):  # a large number becomes infinite in float16
            raise RepairError(f"the row of token {token_id} is not finite in {type_name}")
        converted_rows[token_id] = converted_row
    return converted_rows


def _write_with_a_row_per_token(target: Path, table: TokenRows, new_rows: Mapping[int, torch.Tensor]) -> None:
    """Write a folded table's weight file with a separate row for every token, some of them new."""
    source = table.matrix.file
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(source)
    dtype = getattr(torch, FLOATING_TYPES[table.dtype])
    # The rows of all tokens, shape (V, D), to which `read` has applied the mapping and the weights. So the
    # mapping and the weights are not stored any more.
    matrix = torch.from_numpy(table.read(0, len(table))).to(dtype)
    for dropped_tensor in (table.mapping, table.weights):
        if dropped_tensor is not None:
            del tensors[dropped_tensor.name]
    for token_id, row in new_rows.items():
        matrix[token_id] = row
    tensors[table.matrix.name] = matrix.contiguous()
    save_file(tensors, target, metadata=metadata)
