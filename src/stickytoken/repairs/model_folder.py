"""Write the folder of a repaired model."""

from __future__ import annotations

import errno
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import ModelError, RepairError, StickyTokenError
from stickytoken.measurement import ResultFolder
from stickytoken.repairs.tokenizer_edit import ModelEdit, edited_tokenizer

if TYPE_CHECKING:
    from stickytoken.encoders.loading.stored_rows import TokenRows
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


# The same weights in formats that are not edited.
_OTHER_WEIGHTS = (
    *("pytorch_model*.bin", "pytorch_model.bin.index.json", "tf_model*.h5", "flax_model*.msgpack"),
    *("rust_model.ot", "*.onnx", "*.onnx_data", "*.gguf", "openvino*"),
)


def write_model(source: Path, target: Path, edit: ModelEdit) -> None:
    """Write a copy of a model's folder with the edit in it.

    Raises:
        RepairError: The model cannot be edited so, the folder cannot be written, or other rows than those of
            the edit would change. No weight file is left that was not compared with the original.
    """
    from stickytoken.repairs._weights import token_rows, write_rows

    tokenizer = edited_tokenizer(source, edit)
    tables = token_rows(source) if edit.rows else []
    for table in tables:
        for token_id in edit.rows:
            if not 0 <= token_id < len(table):
                raise RepairError(
                    f"{table.matrix.name} in {table.matrix.file} has rows for {len(table)} tokens, and none "
                    f"for token {token_id}: leave it out"
                )
    by_file: dict[Path, list[TokenRows]] = {}
    for table in tables:
        by_file.setdefault(table.matrix.file, []).append(table)

    def skipped(folder: str, names: list[str]) -> set[str]:
        stale = {name for name in names if Path(folder, name) in by_file}  # written below
        for path in (Path(folder, name) for name in names if edit.rows):
            if path.name in ("onnx", "openvino") if path.is_dir() else any(map(path.match, _OTHER_WEIGHTS)):
                stale.add(path.name)
        return stale | {".git", ".cache"} if Path(folder) == source else stale

    try:
        shutil.copytree(source, target, ignore=skipped)  # links, as in the hub's cache, become files
        # Read-only files can be changed meanwhile; folders stay open to their owner.
        for folder in [target, *(each for each in target.rglob("*") if each.is_dir())]:
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        for name, content in tokenizer.items():
            _replace_content(target / name, content)
        for file, own_tables in by_file.items():
            write_rows(file, target / file.relative_to(source), own_tables, edit.rows)
    except OSError as error:
        said, number = error.strerror or str(error), error.errno
        if isinstance(error, shutil.Error):  # of each file, its source, its target and what was wrong
            said = str(error.args[0][0][-1])  # such as "[Errno 28] No space left on device: 'a' -> 'b'"
            parts = re.match(r"\[Errno (\d+)\] (.+?)(: |$)", said)
            number, said = (int(parts[1]), parts[2]) if parts else (None, said)
        if number in (errno.ENOSPC, errno.EDQUOT):
            said = "no space is left; free some and run the same command again"
        raise RepairError(f"{target} cannot be written: {said}") from error


def _replace_content(file: Path, content: bytes) -> None:
    """Write a file that may be there and read-only; its permissions stay."""
    mode = file.stat().st_mode if file.is_file() else None
    if mode is not None:
        file.chmod(mode | stat.S_IWUSR)
    file.write_bytes(content)
    if mode is not None:
        file.chmod(mode)


def rows_writable(folder: Path) -> bool:
    from stickytoken.repairs._weights import token_rows

    try:
        token_rows(folder)
    except (ModelError, RepairError):
        return False
    return True


def repairable(encoder: IdEncoder) -> tuple[SentenceTransformerEncoder, Path]:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    if not isinstance(encoder, SentenceTransformerEncoder):
        raise RepairError(
            f"{encoder.name} is a {type(encoder).__name__}: only models that sentence-transformers loads by "
            "itself can be repaired"
        )
    if encoder.spec is None:
        raise RepairError(
            f"{encoder.name} was passed as an object, and a repair starts from files: pass the name or the "
            "folder of the model"
        )
    if encoder.layer is not None:
        raise RepairError(
            f"{encoder.name} was read after layer {encoder.layer}, and a repair measures the model as it is "
            "saved: repair from a run without a layer"
        )
    place = Path(resolve_model(encoder.spec.model, encoder.spec.revision).location)
    if not place.is_dir():
        raise RepairError(
            f"the files of {encoder.name} are not on this machine: pass the folder of the model"
        )
    return encoder, place


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """Lock the hidden folder beside ``out``, yield where a model is built in it, remove it at the end."""
    hidden = _hidden(out)
    model = hidden / "model"
    try:
        with ResultFolder(hidden).locked():
            shutil.rmtree(model, ignore_errors=True)  # left there by a killed process
            try:
                yield model
            finally:
                clear_workshop(out)
    except StickyTokenError as error:
        said = str(error).replace(str(model), str(out)).replace(str(hidden), str(out))
        if said == str(error):
            raise
        raise type(error)(said) from error


def clear_workshop(out: Path) -> None:
    shutil.rmtree(_hidden(out), ignore_errors=True)


def _hidden(out: Path) -> Path:
    return out.absolute().with_name(f".{out.name}.repairing")
