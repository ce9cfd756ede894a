"""Copy a model folder and apply an edit to the copy."""

from __future__ import annotations

import errno
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder._centre import add_projection
from stickytoken.repairs.model_folder._places import MODULES_FILE, embedding_places
from stickytoken.repairs.model_folder._rows import require_rows_fit, write_rows
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
