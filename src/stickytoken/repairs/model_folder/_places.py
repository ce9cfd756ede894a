"""Where a model folder keeps its input embeddings."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stickytoken.errors import RepairError

MODULES_FILE = "modules.json"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth")
_STATIC = "StaticEmbedding"
_HEADER_LIMIT = 100_000_000
_SHOWN_REASON = 200


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor in a safetensors file.

    Attributes:
        file: The file.
        name: Its name there.
        dtype: Its type, as safetensors calls it.
        shape: Its shape.
        start: Byte of the file at which it begins.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def moved(self, source: Path, target: Path) -> TensorPlace:
        """Return the same place in a copy of a folder."""
        return replace(self, file=target / self.file.relative_to(source))


def embedding_places(folder: Path) -> tuple[TensorPlace, ...]:
    """Find every stored copy of the input embeddings; tied weights may be stored under several names."""
    for place in (folder, *(each.parent for each in folder.glob("*/adapter_config.json"))):
        if (place / "adapter_config.json").is_file():
            raise RepairError(
                f"{place} holds an adapter, not whole weights: merge it into its base model "
                "(merge_and_unload of peft), save that, and repair it"
            )
    module, kind = _token_module(folder)
    tensors = list(_tensors(module))
    if not tensors:
        raise RepairError(_without_safetensors(module))
    if kind == _STATIC:
        names: tuple[str, ...] = ("embedding.weight", "weight")
        size = None
    else:
        names, size = _names_in_model(module)
    return _matching(tensors, names, size, module)


def _matching(
    tensors: Sequence[TensorPlace], names: Sequence[str], size: tuple[int, int] | None, module: Path
) -> tuple[TensorPlace, ...]:
    fitting = [each for each in tensors if len(each.shape) == 2 and (size is None or each.shape == size)]
    found = [each for each in fitting if any(_same_name(each.name, name) for name in names)]
    if not found and len(fitting) == 1:
        found = fitting
    if not found:
        shown = ", ".join(each.name for each in fitting[:5]) or "none"
        raise RepairError(
            f"the input embeddings of {module} were not found: of the shape that its configuration "
            f"gives, it stores {shown}"
        )
    return tuple(found)


def _same_name(stored: str, name: str) -> bool:
    """Compare names; a file and a model may differ in the name of the part around them."""
    return stored == name or stored.endswith(f".{name}") or name.endswith(f".{stored}")


def _names_in_model(module: Path) -> tuple[tuple[str, ...], tuple[int, int]]:
    """Ask transformers for the names and the size of the embeddings, without loading any weights."""
    import torch
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(str(module), local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        embeddings = model.get_input_embeddings().weight
    except Exception as error:  # every architecture refuses a configuration in its own way
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        raise RepairError(f"the model in {module} cannot be built by transformers: {reason}") from error
    names = tuple(
        name for name, weight in model.named_parameters(remove_duplicate=False) if weight is embeddings
    )
    rows, width = embeddings.shape
    return names, (int(rows), int(width))


def _token_module(folder: Path) -> tuple[Path, str]:
    """Return the folder and the kind of the module that embeds tokens."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return folder, ""
    try:
        modules = [
            (folder / entry["path"], entry["type"].rpartition(".")[2]) for entry in read_modules(folder)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise RepairError(f"{path} is not a list of modules: {error}") from error
    routers = [kind for _, kind in modules if kind in ("Router", "Asym")]
    if routers:
        raise RepairError(
            f"{folder} has a {routers[0]} with several sets of embeddings: repair each model alone"
        )
    found = [(place, kind) for place, kind in modules if (place / "config.json").is_file() or kind == _STATIC]
    for place, kind in found:
        if kind == _STATIC or kind.endswith("Transformer"):
            return place, kind
    raise RepairError(
        f"{folder} has no module with token embeddings: its modules are {', '.join(k for _, k in modules)}"
    )


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Read modules.json."""
    path = folder / MODULES_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RepairError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, list):
        raise RepairError(f"{path} is not a list of modules")
    return found


def _tensors(module: Path) -> Iterator[TensorPlace]:
    """List the tensors of the files that a model is loaded from."""
    index = module / _INDEX
    whole = module / "model.safetensors"
    if whole.is_file():
        names = [whole.name]
    elif index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise RepairError(f"{index} cannot be read: {error}") from error
    else:
        names = []
    for name in names:
        yield from tensors_of(module / name)


def tensors_of(file: Path) -> list[TensorPlace]:
    """Read the table of a safetensors file."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _HEADER_LIMIT:
                raise ValueError("its header is too long")
            header = json.loads(stream.read(length))
        return [
            TensorPlace(
                file, name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]
            )
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise RepairError(f"{file} is not a readable safetensors file: {error}") from error


def _without_safetensors(module: Path) -> str:
    if any(next(module.glob(pattern), None) for pattern in _PICKLED):
        return (
            f"the weights in {module} are pickled: save them as safetensors first, by loading the model and "
            "saving it with sentence-transformers, and repair that"
        )
    return f"{module} has no model.safetensors: pass the folder of a model with weights"
