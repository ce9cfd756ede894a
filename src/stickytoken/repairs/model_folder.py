"""Write the folder of a repaired model."""

from __future__ import annotations

import errno
import json
import re
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit import TokenizerEdit, edited_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


# The same weights in formats that are not edited.
_OTHER_WEIGHTS = (
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "tf_model*.h5",
    "flax_model*.msgpack",
    "rust_model.ot",
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
    "openvino*",
)
_OTHER_FOLDERS = ("onnx", "openvino")
_NOT_COPIED = (".git", ".cache")


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """What changes in a model.

    Attributes:
        rows: new rows of the input embeddings by token id, each (hidden size,).
        tokenizer: the edit of the tokenizer.
        centre: direction that is taken out of every vector, (dimension,); None for none.
    """

    rows: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    tokenizer: TokenizerEdit = field(default_factory=TokenizerEdit)
    centre: NDArray[np.float32] | None = None


def write_model(source: Path, target: Path, edit: ModelEdit) -> None:
    """Write an edited copy of a model folder.

    Args:
        source: The model folder; it is only read.
        target: The new folder, which does not exist. What an error leaves there is for the caller to remove.
        edit: What changes. Where vectors change, the old weights in other formats are left out.

    Raises:
        RepairError: The model cannot be edited so, or the target cannot be written.
    """
    tokenizer = edited_tokenizer(source, edit.tokenizer)
    places = embedding_places(source) if edit.rows else ()
    require_rows_fit(edit.rows, places)
    if edit.centre is not None and not (source / MODULES_FILE).is_file():
        raise RepairError(f"{source} has no {MODULES_FILE}: save it with sentence-transformers to centre it")
    try:
        _copy(source, target, keep_other_weights=not edit.rows and edit.centre is None)
        with _writable(target):
            for name, content in tokenizer.items():
                (target / name).write_bytes(content)
            write_rows(edit.rows, [each.moved(source, target) for each in places])
            if edit.centre is not None:
                add_projection(target, edit.centre)
    except (OSError, shutil.Error) as error:
        raise RepairError(f"{target} cannot be written: {_reason(error)}") from error


def rows_writable(folder: Path) -> bool:
    """Check whether new rows can be written into the stored weights of a model."""
    try:
        require_rows_fit({}, embedding_places(folder))
    except RepairError:
        return False
    return True


def _copy(source: Path, target: Path, *, keep_other_weights: bool) -> None:
    """Copy all files with their permissions; links, as in the hub's cache, become files."""

    def skipped(folder: str, names: list[str]) -> set[str]:
        hidden = set(_NOT_COPIED) if Path(folder) == source else set()
        stale = {name for name in names if not keep_other_weights and _is_stale(Path(folder) / name)}
        return hidden | stale

    shutil.copytree(source, target, ignore=skipped)


@contextmanager
def _writable(copy: Path) -> Iterator[None]:
    """Let read-only files be changed meanwhile; folders stay open to their owner."""
    for place in [copy, *(each for each in copy.rglob("*") if each.is_dir())]:
        place.chmod(place.stat().st_mode | stat.S_IRWXU)
    modes = {file: file.stat().st_mode for file in copy.rglob("*") if file.is_file()}
    for file, mode in modes.items():
        file.chmod(mode | stat.S_IWUSR)
    yield
    for file, mode in modes.items():
        file.chmod(mode)


def _is_stale(path: Path) -> bool:
    if path.is_dir():
        return path.name in _OTHER_FOLDERS
    return any(path.match(pattern) for pattern in _OTHER_WEIGHTS)


def _reason(error: OSError) -> str:
    said, number = error.strerror or str(error), error.errno
    if isinstance(error, shutil.Error):  # of each file, its source, its target and what was wrong
        said = str(error.args[0][0][-1])  # such as "[Errno 28] No space left on device: 'a' -> 'b'"
        found = re.match(r"\[Errno (\d+)\] (.+?)(: |$)", said)
        number, said = (int(found[1]), found[2]) if found else (None, said)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left; free some and run the same command again"
    return said


_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def require_rows_fit(rows: Mapping[int, NDArray[np.float32]], places: Sequence[TensorPlace]) -> None:
    """Refuse rows that do not fit the stored embeddings."""
    for place in places:
        if place.dtype not in _TYPES:
            raise RepairError(
                f"the embeddings in {place.file} are stored as {place.dtype}: rows can be written into "
                f"{', '.join(_TYPES)}; repair the model before it is quantized"
            )
        count, width = place.shape
        for token_id, row in rows.items():
            if not 0 <= token_id < count:
                raise RepairError(f"{place.file} has {count} rows, and none for token {token_id}")
            if row.shape != (width,):
                raise RepairError(
                    f"the row of token {token_id} has the shape {row.shape}, and not ({width},)"
                )
            as_stored(row, place, token_id)


def as_stored(row: NDArray[np.float32], place: TensorPlace, token_id: int) -> bytes:
    """Convert a row to the type of the stored weights."""
    import torch

    stored = torch.from_numpy(row.copy()).to(getattr(torch, _TYPES[place.dtype]))
    if not bool(stored.isfinite().all()):
        raise RepairError(f"the row of token {token_id} is not finite in {_TYPES[place.dtype]}")
    return stored.view(torch.uint8).numpy().tobytes()


def write_rows(rows: Mapping[int, NDArray[np.float32]], places: Sequence[TensorPlace]) -> None:
    """Write rows into files that may be changed."""
    for place in places:
        with place.file.open("r+b") as stream:
            for token_id, row in rows.items():
                content = as_stored(row, place, token_id)
                stream.seek(place.start + token_id * len(content))
                stream.write(content)


_TYPE = "sentence_transformers.models.Dense"


def add_projection(folder: Path, centre: NDArray[np.float32]) -> None:
    """Add a linear layer that removes a direction, before the vectors are normalised.

    Every release of sentence-transformers knows its module.
    """
    import numpy as np
    import torch
    from sentence_transformers.base.modules import Dense

    modules = read_modules(folder)
    length = float(np.linalg.norm(centre.astype(np.float64)))
    if centre.ndim != 1 or not np.isfinite(length) or length == 0:
        raise RepairError(f"a direction of the shape {centre.shape} and length {length} cannot be removed")
    unit = centre.astype(np.float64) / length
    weight = torch.from_numpy((np.eye(len(unit)) - np.outer(unit, unit)).astype(np.float32))
    size = len(unit)
    layer = Dense(size, size, bias=False, activation_function=torch.nn.Identity(), init_weight=weight)
    last = modules[-1]["type"].rpartition(".")[2] if modules else ""
    place = len(modules) - (last == "Normalize")
    names = {str(entry["name"]) for entry in modules}
    number = next(number for number in range(len(modules), 1000) if _is_free(folder, number, names))
    path = f"{number}_Dense"
    (folder / path).mkdir()
    layer.save(str(folder / path))
    modules.insert(place, {"idx": place, "name": str(number), "path": path, "type": _TYPE})
    listed = [entry | {"idx": index} for index, entry in enumerate(modules)]
    (folder / MODULES_FILE).write_text(json.dumps(listed, indent=2), "utf-8")


def _is_free(folder: Path, number: int, names: set[str]) -> bool:
    return str(number) not in names and not (folder / f"{number}_Dense").exists()


__all__ = ["ModelEdit", "rows_writable", "write_model"]
