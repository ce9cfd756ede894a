"""Find the rows of a model that is repaired, write new ones, and compare the file with the original."""

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

from stickytoken.encoders.loading.stored_rows import (
    FLOATING_TYPES,
    StoredTensor,
    TokenRows,
    static_rows,
    stored_tensors,
)
from stickytoken.errors import RepairError


def token_rows(folder: Path) -> list[TokenRows]:
    """Find the rows of the token embeddings in a model's folder; several if they are stored several times.

    Raises:
        RepairError: There are none, or no row can be written into them.
    """
    for adapter in (folder / "adapter_config.json", *folder.glob("*/adapter_config.json")):
        if adapter.is_file():
            raise RepairError(
                f"{adapter.parent} holds an adapter, not whole weights: merge it into its base model "
                "(merge_and_unload of peft), save that, and repair it"
            )
    module, kind = _token_module(folder)
    tensors = _tensors(module)
    if not tensors:
        raise RepairError(
            f"the weights in {module} are pickled: save them as safetensors first, by loading the model "
            "and saving it with sentence-transformers, and repair that"
        )
    if kind == "StaticEmbedding":
        static = static_rows(tensors)
        if static is None:
            raise RepairError(
                f"the weights in {module} have no tensor that a static model reads its rows from"
            )
        tables = [static]
    else:
        tables = [TokenRows(matrix) for matrix in _stored_inputs(module, tensors)]
    for table in tables:
        if table.dtype not in FLOATING_TYPES:
            raise RepairError(
                f"the embeddings in {table.matrix.file} are stored as {table.dtype}: rows can be written "
                f"into {', '.join(FLOATING_TYPES)}; repair the model before it is quantized"
            )
    return tables


def _stored_inputs(module: Path, tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Find the tensors that transformers reads the input embeddings from."""
    names, size = _names_in_model(module)
    fitting = [tensor for tensor in tensors if tensor.shape == size]
    # A name may begin with that of a larger model, in the file or in the model as it is built.
    matrices = [
        tensor
        for tensor in fitting
        if any(f".{tensor.name}".endswith(f".{name}") or name.endswith(f".{tensor.name}") for name in names)
    ]
    if not matrices and len(fitting) != 1:
        listed = ", ".join(tensor.name for tensor in fitting[:5]) or "none"
        raise RepairError(
            f"the input embeddings of {module} were not found: of the shape that its configuration "
            f"gives, it stores {listed}"
        )
    return matrices or fitting


def _names_in_model(module: Path) -> tuple[list[str], tuple[int, ...]]:
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(str(module), local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        embeddings = model.get_input_embeddings().weight
    except Exception as error:  # every architecture refuses a configuration in its own way
        reason = " ".join(str(error).split())[:200]
        raise RepairError(f"the model in {module} cannot be built by transformers: {reason}") from error
    names = [name for name, weight in model.named_parameters(remove_duplicate=False) if weight is embeddings]
    return names, tuple(embeddings.shape)


def _token_module(folder: Path) -> tuple[Path, str]:
    path = folder / "modules.json"
    if not path.is_file():
        return folder, ""
    entries = json.loads(path.read_text("utf-8"))
    modules = [(folder / entry["path"], entry["type"].rpartition(".")[2]) for entry in entries]
    kinds = [kind for _, kind in modules]
    if several := {"Router", "Asym"}.intersection(kinds):
        raise RepairError(
            f"{folder} has a {min(several)} with several sets of embeddings: repair each model alone"
        )
    for place, kind in modules:
        read = kind.endswith("Transformer") and (place / "config.json").is_file()
        if read or kind == "StaticEmbedding":
            return place, kind
    raise RepairError(f"{folder} has no module with token embeddings: its modules are {', '.join(kinds)}")


def _tensors(module: Path) -> list[StoredTensor]:
    names, index = {"model.safetensors"}, module / "model.safetensors.index.json"
    if index.is_file() and not (module / "model.safetensors").is_file():
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    tensors: list[StoredTensor] = []
    for file in (module / name for name in sorted(names)):
        if file.is_file():
            tensors += stored_tensors(file)
        elif len(names) > 1:
            raise RepairError(f"{module} is incomplete: {index.name} names {file.name}, which is missing")
    return tensors


# A weight file has this ending until it has been compared with the original.
_UNCHECKED = ".unchecked"


def write_rows(
    source: Path, target: Path, tables: Sequence[TokenRows], rows: Mapping[int, NDArray[np.float32]]
) -> None:
    """Write a copy of a weight file with new rows, under its own name once nothing else has changed in it."""
    stored = {table.matrix.name: _in_type(rows, table) for table in tables}
    unchecked = target.with_name(target.name + _UNCHECKED)
    try:
        folded = [table for table in tables if table.folded]
        if folded:
            _write_unfolded(unchecked, folded[0], stored[folded[0].matrix.name])
        else:
            shutil.copyfile(source, unchecked)
            with unchecked.open("r+b") as stream:
                for table in tables:
                    for token_id, row in stored[table.matrix.name].items():
                        stream.seek(table.matrix.start + token_id * table.matrix.row_bytes)
                        stream.write(row.view(torch.uint8).numpy().tobytes())
        _require_only_rows(tables, unchecked, stored)
        shutil.copymode(source, unchecked)
        unchecked.replace(target)
    finally:
        unchecked.unlink(missing_ok=True)


def _in_type(rows: Mapping[int, NDArray[np.float32]], table: TokenRows) -> dict[int, torch.Tensor]:
    """Return the rows in the type that they are stored in."""
    kind = FLOATING_TYPES[table.dtype]
    stored = {}
    for token_id, row in rows.items():
        if row.shape != (table.width,):
            raise RepairError(
                f"the row of token {token_id} has the shape {row.shape}, and those of {table.matrix.name} "
                f"have {table.width} numbers"
            )
        stored[token_id] = torch.from_numpy(row.copy()).to(getattr(torch, kind))
        if not bool(stored[token_id].isfinite().all()):
            raise RepairError(f"the row of token {token_id} is not finite in {kind}")
    return stored


def _write_unfolded(target: Path, table: TokenRows, rows: Mapping[int, torch.Tensor]) -> None:
    """Write a static model with one stored row for each token, so that a token can have a row of its own."""
    source = table.matrix.file
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(source)
    for part in (table.mapping, table.weights):
        if part is not None:
            del tensors[part.name]
    whole = torch.from_numpy(table.read(0, len(table))).to(getattr(torch, FLOATING_TYPES[table.dtype]))
    for token_id, row in rows.items():
        whole[token_id] = row
    tensors[table.matrix.name] = whole.contiguous()
    save_file(tensors, target, metadata=metadata)


def _require_only_rows(
    tables: Sequence[TokenRows], written: Path, rows: Mapping[str, Mapping[int, torch.Tensor]]
) -> None:
    """Compare a written weight file with the original, and refuse any change but that of the rows.

    Rows are compared as the model looks them up, all other tensors byte by byte.
    """
    source = tables[0].matrix.file
    before = {tensor.name: tensor for tensor in stored_tensors(source)}
    after = {tensor.name: tensor for tensor in stored_tensors(written)}
    of_rows: dict[str, TokenRows] = {}
    gone = set()
    for table in tables:
        of_rows[table.matrix.name] = table
        gone |= {part.name for part in (table.mapping, table.weights) if part is not None}
    if after.keys() != before.keys() - gone:
        raise RepairError(f"{written} has other tensors than {source}: this is a fault of stickytoken")
    for name, tensor in before.items():
        if name in of_rows:
            changed = _changed_rows(of_rows[name], TokenRows(after[name]), rows[name])
            if changed is not None:
                raise RepairError(
                    f"the repair would have given token {changed} in {name} another row than it should: "
                    "nothing was written; this is a fault of stickytoken"
                )
        elif name not in gone and not _same_bytes(tensor, after[name]):
            raise RepairError(
                f"the repair would have changed {name} in {source}: nothing was written; this is a fault of "
                "stickytoken"
            )


def _changed_rows(before: TokenRows, after: TokenRows, rows: Mapping[int, torch.Tensor]) -> int | None:
    """Return the first token whose row is not the one that it should have; None if there is none."""
    if len(after) != len(before) or after.dtype != before.dtype:
        return 0
    for begin, rows_before in before.parts():
        expected = rows_before.copy()
        end = begin + len(expected)
        for token_id, row in rows.items():
            if begin <= token_id < end:
                expected[token_id - begin] = row.to(torch.float64).numpy()
        found = after.read(begin, end)
        # Not the numbers: some are not equal to themselves.
        wrong = (found.view(np.uint8) != expected.view(np.uint8)).any(axis=1)
        if wrong.any():
            return begin + int(np.flatnonzero(wrong)[0])
    return None


# Bytes that are compared at a time.
_COMPARED = 2**24


def _same_bytes(before: StoredTensor, after: StoredTensor) -> bool:
    if (before.dtype, before.shape, before.size) != (after.dtype, after.shape, after.size):
        return False
    with before.file.open("rb") as old, after.file.open("rb") as new:
        old.seek(before.start)
        new.seek(after.start)
        left = before.size
        while left:
            count = min(left, _COMPARED)
            if old.read(count) != new.read(count):
                return False
            left -= count
    return True
