"""Copy a model folder and apply an edit to the copy."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from stickytoken.errors import RepairError
from stickytoken.measurement.atomic import sync_folder
from stickytoken.repairs.model_folder._centre import add_projection
from stickytoken.repairs.model_folder._places import MODULES_FILE, embedding_places
from stickytoken.repairs.model_folder._rows import require_rows_fit, write_rows
from stickytoken.repairs.tokenizer_edit import TokenizerEdit, edited_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CARD = "README.md"
_UNFINISHED = ".unfinished"
_LOCK = ".lock"
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


def write_model(source: Path, target: Path, edit: ModelEdit, notes: Mapping[str, str]) -> tuple[str, ...]:
    """Write an edited copy of a model folder.

    The copy is made in a hidden folder beside the target and renamed when it is complete and on disk. A kill
    at any moment leaves no target; the next call for the same target removes what was left.

    Args:
        source: The model folder; it is only read.
        target: The new folder; it must not exist, or be empty.
        edit: What changes.
        notes: Texts by file name to add. The text for README.md is appended to the model card.

    Returns:
        Files left out because they hold the old weights in another format.

    Raises:
        RepairError: The model cannot be edited so, or the target cannot be written.
    """
    require_free_target(source, target)
    tokenizer = edited_tokenizer(source, edit.tokenizer)
    places = embedding_places(source) if edit.rows else ()
    require_rows_fit(edit.rows, places)
    if edit.centre is not None and not (source / MODULES_FILE).is_file():
        raise RepairError(f"{source} has no {MODULES_FILE}: save it with sentence-transformers to centre it")
    with _unfinished(target) as copy:
        left_out = _copied(source, copy, keep_other_weights=not edit.rows and edit.centre is None)
        with _writable(copy):
            for name, content in tokenizer.items():
                (copy / name).write_bytes(content)
            write_rows(edit.rows, [each.moved(source, copy) for each in places])
            if edit.centre is not None:
                add_projection(copy, edit.centre)
            for name, text in notes.items():
                _add_note(copy / name, text)
    return left_out


def embedding_tensor(folder: Path) -> tuple[Path, str]:
    """Find the file and the name of the tensor that holds the input embeddings.

    Raises:
        RepairError: There is none, or it lies in a format that cannot be edited.
    """
    place = embedding_places(folder)[0]
    return place.file, place.name


def require_free_target(source: Path, target: Path) -> None:
    """Refuse a target that is not empty, is inside the source, or cannot be written.

    Raises:
        RepairError: The target cannot be used.
    """
    try:
        if not source.is_dir():
            raise RepairError(f"no model folder {str(source)!r}")
        if target.is_dir() and any(target.iterdir()):
            raise RepairError(f"{target} is not empty: pass a new folder, or delete it")
        if target.exists() and not target.is_dir():
            raise RepairError(f"{target} is a file: pass a folder")
        inside, outside = target.resolve(), source.resolve()
        if inside == outside or outside in inside.parents:
            raise RepairError(f"{target} is inside the model folder {source}: pass a folder outside it")
        place = next(each for each in inside.parents if each.exists())
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise RepairError(f"{target} cannot be written: {place} is read-only or no folder")
    except OSError as error:
        raise RepairError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Make a hidden folder beside the target, and rename it when all is written."""
    parent = target.absolute().parent
    lock = FileLock(parent / f".{target.name}{_LOCK}")
    copy = parent / f".{target.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RepairError(
            f"{target} is being written by another process: wait, or pass another folder"
        ) from error
    except OSError as error:
        raise RepairError(f"{target} cannot be written: {error.strerror or error}") from error
    try:
        for leftover in parent.glob(f".{target.name}.*{_UNFINISHED}"):
            shutil.rmtree(leftover, ignore_errors=True)
        copy.mkdir()
        yield copy
        _sync(copy)
        copy.rename(target)
        sync_folder(parent)
    except (OSError, shutil.Error) as error:
        raise RepairError(f"{target} cannot be written: {_reason(error)}") from error
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        (parent / f".{target.name}{_LOCK}").unlink(missing_ok=True)
        lock.release()


def _copied(source: Path, copy: Path, *, keep_other_weights: bool) -> tuple[str, ...]:
    """Copy all files with their permissions; links, as in the hub's cache, become files."""
    left_out: list[str] = []

    def skipped(folder: str, names: list[str]) -> set[str]:
        place = Path(folder).relative_to(source)
        hidden = {name for name in names if name in _NOT_COPIED and place == Path()}
        stale = set() if keep_other_weights else {name for name in names if _is_stale(Path(folder) / name)}
        left_out.extend(str(place / name) for name in sorted(stale))
        return hidden | stale

    shutil.copytree(source, copy, ignore=skipped, dirs_exist_ok=True)
    return tuple(left_out)


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


def _add_note(path: Path, text: str) -> None:
    if path.name == _CARD and path.is_file():
        card = path.read_text("utf-8", errors="surrogateescape")
        path.write_text(f"{card.rstrip()}\n\n{text}", "utf-8", errors="surrogateescape")
    else:
        path.write_text(text, "utf-8")


def _sync(folder: Path) -> None:
    """Flush everything below a folder to disk."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def _reason(error: OSError) -> str:
    if isinstance(error, shutil.Error):  # of each file, its source, its target and what was wrong
        first = str(error.args[0][0][-1])  # such as "[Errno 28] No space left on device: 'a' -> 'b'"
        return first.partition("] ")[2].partition(": ")[0] or first
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left; free some and run the same command again"
    return error.strerror or str(error)
