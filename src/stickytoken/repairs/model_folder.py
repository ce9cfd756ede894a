"""Whether a model can be repaired, and how the folder of the repaired model is written."""

from __future__ import annotations

import errno
import json
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.encoders.files.description import modules_on_route, routes_in
from stickytoken.encoders.files.resolution import resolve_model
from stickytoken.encoders.files.tokenizer_loading import text_module
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import ModelError, RepairError, StickyTokenError
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs.tokenizer_edit import ModelEdit, edit_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stickytoken.encoders.files.spec import EncoderSpec
    from stickytoken.encoders.files.stored_rows import TokenRows
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


class RepairableModel(NamedTuple):
    """A model that can be repaired, how it was loaded, and the folder of its files."""

    encoder: SentenceTransformerEncoder
    spec: EncoderSpec
    folder: Path

    @property
    def named_route(self) -> str | None:
        """The route or task that the model was loaded with; None for the default route."""
        return None if self.encoder.route is None else self.encoder.route.task

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Return the token embeddings, shape (V, D); None if the model does not expose them."""
        from stickytoken.inspection import inspector_of

        return inspector_of(self.encoder).embedding_matrix()

    def note_on_routes(self) -> str | None:
        """Return a note on the routes that a repair changes; None if the model has only one route."""
        routed_model = self.encoder.route
        if routed_model is None:
            return None
        # The route that the texts of the run took. `named_route` may be None, or a task that the model maps
        # to a route.
        measured_route = routed_model.route
        other_routes = [route for route in routes_in(self.folder) if route != measured_route]
        if not other_routes:
            return None
        # The module that reads the texts. Its folder holds both the tokenizer and the token embeddings, so
        # every route through this module shares both.
        repaired_module = text_module(self.folder, self.encoder.name, self.named_route)
        statements = [f"repaired the route {measured_route!r}, which the run measured"]
        for route in other_routes:
            modules = modules_on_route(self.folder, route, self.encoder.name)
            module_folders = {folder for folder, _kind in modules}
            if repaired_module.folder in module_folders:
                statements.append(
                    f"the route {route!r} has the same embeddings and tokenizer, so it changes too"
                )
            else:
                statements.append(
                    f"the route {route!r} does not change: to repair it too, detect the repaired model with "
                    f"--route {route}"
                )
        return "; ".join(statements)


def require_repairable(encoder: Encoder) -> RepairableModel:
    """Return a model with its folder, or raise an error if it cannot be repaired.

    Raises:
        RepairError: the model is not a SentenceTransformer, was passed as an object, is read only up to an
            inner layer, or has no files on this machine.
    """
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    if not isinstance(encoder, SentenceTransformerEncoder):
        raise RepairError(
            f"{encoder.name} is a {type(encoder).__name__}: only models that sentence-transformers loads by "
            "itself can be repaired"
        )
    if encoder.spec is None:
        raise RepairError(
            f"{encoder.name} was passed as an object, but a repair needs its files: pass the name or the "
            "folder of the model"
        )
    if encoder.layer is not None:
        raise RepairError(
            f"{encoder.name} was read after layer {encoder.layer}, but a repair measures the output of the "
            "whole model: repair from a run without a layer"
        )
    spec = encoder.spec
    folder = Path(resolve_model(spec.model, spec.revision).location)
    if not folder.is_dir():
        raise RepairError(
            f"the files of {encoder.name} are not on this machine: pass the folder of the model"
        )
    return RepairableModel(encoder, spec, folder)


def rows_writable(folder: Path, route: str | None = None) -> bool:
    """Return whether new rows can be written into the weights of a model or of one of its routes."""
    from stickytoken.repairs._weights import find_token_tables

    try:
        find_token_tables(folder, route)
    except (ModelError, RepairError):
        return False
    return True


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """Create and lock a hidden folder beside ``out`` to build a model in; remove it at the end.

    Yields:
        Path inside the hidden folder at which to build the model. In error messages that name the hidden
        folder, its path is replaced with ``out``.
    """
    hidden = _hidden_folder(out)
    model = hidden / "model"
    try:
        with ResultFolder(hidden).locked():
            shutil.rmtree(model, ignore_errors=True)  # may be left over from a process that was killed
            try:
                yield model
            finally:
                clear_workshop(out)
    except StickyTokenError as error:  # also one that the with block of the caller raises
        message = str(error).replace(str(model), str(out)).replace(str(hidden), str(out))
        if message == str(error):  # the message does not name the hidden folder, so the error stays as it is
            raise
        raise type(error)(message) from error


def clear_workshop(out: Path) -> None:
    """Remove the hidden folder beside ``out``, if it exists."""
    shutil.rmtree(_hidden_folder(out), ignore_errors=True)


def _hidden_folder(out: Path) -> Path:
    return out.absolute().with_name(f".{out.name}.repairing")


# Files with the same weights in other formats and precisions. A repair with new rows does not copy them,
# because they would be outdated.
_OTHER_WEIGHTS = (
    "model.*.safetensors",  # such as model.fp16.safetensors, or its shards
    "model.safetensors.index.*.json",
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
_OTHER_WEIGHT_FOLDERS = ("onnx", "openvino")
# Folders that git and the client of the Hugging Face Hub create, which are not copied.
_NOT_OF_THE_MODEL = {".git", ".cache"}


def write_model(source: Path, target: Path, edit: ModelEdit) -> None:
    """Write a copy of a model's folder with the edit applied.

    The folder gets the edited files of the tokenizer, and weight files with the new rows. If there are new
    rows, files with the same weights in other formats are left out, because they would be outdated. Files of
    the tokenizer in ``onnx`` or ``openvino`` are edited if they are copies, and otherwise left out, with or
    without new rows.

    Raises:
        RepairError: the model cannot be edited in this way, or the folder cannot be written.
    """
    from stickytoken.repairs._weights import write_rows

    tokenizer_files = edit_tokenizer(source, edit)
    tables_by_file = _find_tables(source, edit)
    folders_with_new_rows = set()
    if edit.rows:
        # Modules without token embeddings keep all their weight files, such as the pytorch_model.bin of a
        # Dense module.
        folders_with_new_rows = {source, *(file.parent for file in tables_by_file)}

    def list_names_to_skip(folder_name: str, names: list[str]) -> set[str]:
        """Return which files and folders in a folder of the model `copytree` must not copy."""
        folder = Path(folder_name)
        skipped = set(_NOT_OF_THE_MODEL) if folder == source else set()
        for name in names:
            path = folder / name
            is_written_below = path in tables_by_file
            is_outdated = folder in folders_with_new_rows and _is_other_weights(path)
            if is_written_below or is_outdated:
                skipped.add(name)
        return skipped

    try:
        # `copytree` replaces symbolic links with copies of the files or folders that they point to.
        shutil.copytree(source, target, ignore=list_names_to_skip)

        # The original may be read-only, but the copy must be writable.
        subfolders = [path for path in target.rglob("*") if path.is_dir()]
        for folder in [target, *subfolders]:
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        for name, content in tokenizer_files.items():
            _replace_content_and_keep_mode(target / name, content)
            _update_exported_copies(source / name, target / name, content)
        for file, tables in tables_by_file.items():
            write_rows(file, target / file.relative_to(source), tables, edit.rows)
    except OSError as error:
        raise RepairError(f"{target} cannot be written: {_describe_failure(error)}") from error


def _find_tables(source: Path, edit: ModelEdit) -> dict[Path, list[TokenRows]]:
    """Return the tables of token embeddings that an edit changes, keyed by weight file."""
    from stickytoken.repairs._weights import find_token_tables

    tables_by_file: dict[Path, list[TokenRows]] = {}
    if not edit.rows:
        return tables_by_file
    # A model that stores its embeddings more than once has several tables, perhaps in one file.
    for table in find_token_tables(source, edit.route):
        for token_id in edit.rows:
            if not 0 <= token_id < len(table):
                raise RepairError(
                    f"{table.matrix.name} in {table.matrix.file} has rows for {len(table)} tokens, but none "
                    f"for token {token_id}: leave this token out"
                )
        tables_by_file.setdefault(table.matrix.file, []).append(table)
    return tables_by_file


def _is_other_weights(path: Path) -> bool:
    """Return whether a file or folder has the weights in another format or precision."""
    if path.is_dir():
        return path.name in _OTHER_WEIGHT_FOLDERS
    return any(path.match(pattern) for pattern in _OTHER_WEIGHTS)


def _update_exported_copies(original: Path, edited: Path, content: bytes) -> None:
    """Write an edited file of the tokenizer over its copies in folders such as ``onnx``.

    A file there that is no copy of the original is removed: how to edit it isn't known, and with it, the
    exported model would still read the tokens.
    """
    for folder_name in _OTHER_WEIGHT_FOLDERS:
        copy = edited.parent / folder_name / edited.name
        if not copy.is_file():
            continue
        if original.is_file() and _has_same_content(copy, original):
            _replace_content_and_keep_mode(copy, content)
        else:
            copy.unlink()


def _has_same_content(first: Path, second: Path) -> bool:
    contents = (first.read_bytes(), second.read_bytes())
    if contents[0] == contents[1] or first.suffix != ".json":
        return contents[0] == contents[1]
    try:  # an exporter may have written the same JSON in another way
        return bool(json.loads(contents[0]) == json.loads(contents[1]))
    except ValueError:
        return False


def _replace_content_and_keep_mode(file: Path, content: bytes) -> None:
    mode = file.stat().st_mode if file.is_file() else None
    if mode is not None:
        file.chmod(mode | stat.S_IWUSR)  # it may be read-only
    file.write_bytes(content)
    if mode is not None:
        file.chmod(mode)


def _describe_failure(error: OSError) -> str:
    """Return why a folder could not be written, as the last part of an error message."""
    code = error.errno
    reason = error.strerror or str(error)
    if isinstance(error, shutil.Error):
        # `copytree` collects the source, target and message of each failed copy. A message looks like
        # "[Errno 28] No space left on device: 'a' -> 'b'", and the first one is enough.
        code = None
        failed_copies = error.args[0]
        reason = str(failed_copies[0][-1])
        parts = re.match(r"\[Errno (\d+)\] (.+?)(: |$)", reason)
        if parts is not None:
            code = int(parts[1])
            reason = parts[2]
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space and run the same command again"
    return reason
