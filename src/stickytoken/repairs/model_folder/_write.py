"""Copy a model folder and apply an edit to the copy."""

from __future__ import annotations

import errno
import json
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder._places import MODULES_FILE, TensorPlace, embedding_places, read_modules
from stickytoken.repairs.tokenizer_edit import TokenizerEdit, edited_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
