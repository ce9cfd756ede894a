"""Write the folder of a repaired model."""

from __future__ import annotations

import errno
import json
import re
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import RepairError, StickyTokenError
from stickytoken.measurement import ResultFolder
from stickytoken.repairs.tokenizer_edit import ModelEdit, edited_tokenizer

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


# The same weights in formats that are not edited.
_OTHER_WEIGHTS = (
    *("pytorch_model*.bin", "pytorch_model.bin.index.json", "tf_model*.h5", "flax_model*.msgpack"),
    *("rust_model.ot", "*.onnx", "*.onnx_data", "*.gguf", "openvino*"),
)


def write_model(source: Path, target: Path, edit: ModelEdit) -> None:
    import torch

    tokenizer = edited_tokenizer(source, edit)
    matrices = _embedding_matrices(source) if edit.rows else []

    def skipped(folder: str, names: list[str]) -> set[str]:
        stale = set()
        for path in (Path(folder, name) for name in names if edit.rows):
            if path.name in ("onnx", "openvino") if path.is_dir() else any(map(path.match, _OTHER_WEIGHTS)):
                stale.add(path.name)
        return stale | {".git", ".cache"} if Path(folder) == source else stale

    try:
        shutil.copytree(source, target, ignore=skipped)  # links, as in the hub's cache, become files
        # Read-only files can be changed meanwhile; folders stay open to their owner.
        for folder in [target, *(each for each in target.rglob("*") if each.is_dir())]:
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        modes = {file: file.stat().st_mode for file in target.rglob("*") if file.is_file()}
        for file, mode in modes.items():
            file.chmod(mode | stat.S_IWUSR)
        for name, content in tokenizer.items():
            (target / name).write_bytes(content)
        for matrix in matrices:
            with (target / matrix.file.relative_to(source)).open("r+b") as stream:
                for token_id, row in edit.rows.items():
                    kind = _TYPES[matrix.dtype]
                    stored = torch.from_numpy(row.copy()).to(getattr(torch, kind))
                    if not bool(stored.isfinite().all()):
                        raise RepairError(f"the row of token {token_id} is not finite in {kind}")
                    content = stored.view(torch.uint8).numpy().tobytes()
                    stream.seek(matrix.start + token_id * len(content))
                    stream.write(content)
        for file, mode in modes.items():
            file.chmod(mode)
    except OSError as error:
        said, number = error.strerror or str(error), error.errno
        if isinstance(error, shutil.Error):  # of each file, its source, its target and what was wrong
            said = str(error.args[0][0][-1])  # such as "[Errno 28] No space left on device: 'a' -> 'b'"
            parts = re.match(r"\[Errno (\d+)\] (.+?)(: |$)", said)
            number, said = (int(parts[1]), parts[2]) if parts else (None, said)
        if number in (errno.ENOSPC, errno.EDQUOT):
            said = "no space is left; free some and run the same command again"
        raise RepairError(f"{target} cannot be written: {said}") from error


def rows_writable(folder: Path) -> bool:
    try:
        _embedding_matrices(folder)
    except RepairError:
        return False
    return True


_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Tensor(NamedTuple):
    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the byte at which it begins


def _embedding_matrices(folder: Path) -> list[_Tensor]:
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
        names, size = ["embedding.weight", "weight"], None
    else:
        names, size = _names_in_model(module)
    fitting = [each for each in tensors if len(each.shape) == 2 and size in (None, each.shape)]
    # A name may begin with that of a larger model, in the file or in the model as it is built.
    matrices = [
        each
        for each in fitting
        if any(f".{each.name}".endswith(f".{name}") or name.endswith(f".{each.name}") for name in names)
    ]
    if not matrices and len(fitting) != 1:
        shown = ", ".join(each.name for each in fitting[:5]) or "none"
        raise RepairError(
            f"the input embeddings of {module} were not found: of the shape that its configuration "
            f"gives, it stores {shown}"
        )
    matrices = matrices or fitting
    for matrix in matrices:
        if matrix.dtype not in _TYPES:
            raise RepairError(
                f"the embeddings in {matrix.file} are stored as {matrix.dtype}: rows can be written into "
                f"{', '.join(_TYPES)}; repair the model before it is quantized"
            )
    return matrices


def _names_in_model(module: Path) -> tuple[list[str], tuple[int, ...]]:
    import torch
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


def _tensors(module: Path) -> list[_Tensor]:
    names, index = {"model.safetensors"}, module / "model.safetensors.index.json"
    if index.is_file() and not (module / "model.safetensors").is_file():
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    tensors = []
    for file in (module / name for name in sorted(names)):
        if not file.is_file():
            if len(names) > 1:
                raise RepairError(f"{module} is incomplete: {index.name} names {file.name}, which is missing")
            continue
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start = 8 + length + entry["data_offsets"][0]
            tensors.append(_Tensor(file, name, entry["dtype"], tuple(entry["shape"]), start))
    return tensors


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
