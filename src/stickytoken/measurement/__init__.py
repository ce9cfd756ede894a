"""The run folder: one writer, one file per shard, and a shard is committed once its file exists."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import polars as pl
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from stickytoken.errors import RunError

_LEFTOVERS = ".*.tmp"


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a temporary file next to ``path``, flush it to disk, then rename it: nobody reads a part."""
    # After a kill, the next writer that locks the folder removes the file. A device or a pipe is written to
    # as it is, and what a link points to is replaced, not the link.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        mode = path.stat().st_mode
    except OSError:  # no such file; writing says what else is wrong
        mode = stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        if not isinstance(content, bytes):
            buffer = io.BytesIO()  # a pipe cannot seek
            content(buffer)
            content = buffer.getvalue()
        with _writing(path), path.open("wb", buffering=0) as pipe:
            rest = memoryview(content)
            while rest:
                rest = rest[pipe.write(rest) :]
        return
    try:
        with _writing(path):
            if target.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            with temporary.open("xb") as stream:
                if isinstance(content, bytes):
                    stream.write(content)
                else:
                    content(stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = (
                f"no space left to write {path}: free some and run the same command again; "
                "it continues where it stopped"
            )
        raise RunError(reason) from error


def make_folder(folder: Path) -> None:
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def move_folder(folder: Path, target: Path) -> None:
    with _writing(target):
        for path in [*folder.rglob("*"), folder]:
            if path.is_dir():
                sync_folder(path)
            else:
                _sync_file(path)
        folder.replace(target)
        sync_folder(target.parent)


def _sync_file(path: Path) -> None:
    # Windows flushes only files that are open for writing.
    with path.open("rb" if os.name == "posix" else "rb+") as stream:
        os.fsync(stream.fileno())


def require_writable(folder: Path) -> None:
    with _writing(folder):
        nearest = next((parent for parent in (folder, *folder.absolute().parents) if parent.exists()), folder)
        if not nearest.is_dir():
            reason = "it is a file" if nearest == folder else f"{nearest} is a file"
        elif not os.access(nearest, os.W_OK | os.X_OK):
            reason = f"{nearest} is read-only"
        else:
            return
    raise RunError(f"{folder} cannot be written: {reason}")


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_name(kind: str, identity: str) -> str:
    return f"{kind}-{identity[:12]}"


def default_folder(model: str, kind: str, identity: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{folder_name(kind, identity)}"


Record = TypeVar("Record", bound=BaseModel)

RUN_FILE = "run.json"
IDENTITY_FILE = "identity.json"
PLAN_FILE = "plan.json"
VOCABULARY_FILE = "vocabulary.parquet"
TOKENS_FILE = "tokens.parquet"
_SHARDS = "shards"
_LOCK = ".lock"
_SEAL = b"stickytoken sha256"
# polars panics on some damaged files, which is not one of its own errors.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


class ShardCost(NamedTuple):
    seconds: float
    sequences: int


class ResultFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._accessed():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK)
            lock.acquire(timeout=0)
        try:
            for folder in (self.path, self.path / _SHARDS):
                for leftover in folder.glob(_LEFTOVERS):
                    leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def require_unlocked(self) -> None:
        with self._accessed():
            locked = (self.path / _LOCK).is_file()
        if locked:
            with self.locked():
                pass

    def exists(self) -> bool:
        with self._accessed():
            return self.path.exists()

    def holds_run(self) -> bool:
        with self._accessed():
            return (self.path / RUN_FILE).is_file()

    def holds_other_files(self, own: str = RUN_FILE) -> bool:
        with self._accessed():
            if not self.path.is_dir():
                return self.path.exists()
            if (self.path / own).is_file() or (self.path / IDENTITY_FILE).is_file():
                return False
            shards = self.path / _SHARDS
            entries = [*self.path.iterdir(), *(shards.iterdir() if shards.is_dir() else ())]
            return any(
                entry != shards and entry.name != _LOCK and not entry.match(_LEFTOVERS) for entry in entries
            )

    @contextmanager
    def _accessed(self) -> Iterator[None]:
        try:
            yield
        except Timeout as error:
            raise RunError(
                f"{self.path} is being written by another process: wait for it, or choose another folder"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"{self.path} cannot be used as a run folder: {reason}") from error

    def read_record(self, name: str, kind: type[Record], newest: int | None = None) -> Record | None:
        path = self.path / name
        if not path.is_file():
            return None
        raw = read_json(path)
        if newest is not None and isinstance(raw, dict):
            require_version(raw.get("schema_version"), newest, path)
        return validated(kind, raw, path)

    def write_record(self, name: str, record: BaseModel) -> None:
        try:
            content = record.model_dump_json(indent=2).encode() + b"\n"
        except PydanticSerializationError as error:
            # pydantic wraps a KeyboardInterrupt raised during serialization.
            if "KeyboardInterrupt" in str(error):
                raise KeyboardInterrupt from error
            raise
        write_atomically(self.path / name, content)

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode("utf-8", "backslashreplace"))

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        write_atomically(self.path / name, _parquet(frame))

    def read_table(
        self, name: str, columns: Sequence[str] | Mapping[str, Any] = (), filled: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read a file with these columns: of these types and finite numbers if they are a mapping."""
        path = self.path / name
        again = "run the same command again"
        if not path.is_file():
            raise RunError(f"{self.path} has no {name}: the run is not finished, {again}")
        try:
            # Read the bytes here, because polars cannot open a path that is not valid Unicode.
            table = pl.read_parquet(path.read_bytes())
        except (*_DAMAGE, OSError) as error:
            raise RunError(f"{path} is damaged: delete it and {again}") from error
        missing = [column for column in columns if column not in table.columns]
        if missing:
            raise RunError(f"{path} has no column {missing[0]!r}: delete it and {again}")
        types = columns if isinstance(columns, Mapping) else {}
        for column in columns:
            values = table[column]
            if values.dtype != types.get(column, values.dtype):
                wrong = f"{values.dtype} values instead of {types[column]}"
            elif column in types and values.dtype.is_float() and not values.is_finite().all():
                wrong = "a number that is not finite"
            elif column in filled and values.null_count():
                wrong = "an empty value"
            else:
                continue
            raise RunError(f"{path} has {wrong} in column {column!r}: delete it and {again}")
        return table

    def write_shard(
        self, stage: str, index: int, rows: Sequence[Mapping[str, Any]], cost: ShardCost
    ) -> pl.DataFrame:
        """Commit one shard and return its rows as a table.

        The SHA-256 stands in front of the Parquet footer, where readers do not look.
        """
        frame = pl.DataFrame(list(rows), infer_schema_length=None)
        metadata = {"seconds": f"{cost.seconds:.3f}", "sequences": str(cost.sequences)}
        content = _parquet(frame, metadata)
        path = self._shard(stage, index)
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        seal = _SEAL + hashlib.sha256(content).digest()
        make_folder(path.parent)
        write_atomically(path, content[:footer] + seal + content[footer:])
        return frame

    def read_shard(
        self, stage: str, index: int, keys: Sequence[int], key: str = "token_id"
    ) -> pl.DataFrame | None:
        frame = _read_shard(self._shard(stage, index))
        is_complete = frame is not None and key in frame.columns and frame[key].to_list() == list(keys)
        return frame if is_complete else None

    def total_cost(self, stages: Mapping[str, int]) -> ShardCost:
        paths = [self._shard(stage, index) for stage, size in stages.items() for index in range(size)]
        costs = [pl.read_parquet_metadata(io.BytesIO(path.read_bytes())) for path in paths]
        return ShardCost(
            seconds=sum(float(cost.get("seconds", 0)) for cost in costs),
            sequences=sum(int(cost.get("sequences", 0)) for cost in costs),
        )

    def shard_count(self) -> int:
        return sum(1 for _ in (self.path / _SHARDS).glob("*.parquet"))

    def remove_shards(self) -> None:
        shutil.rmtree(self.path / _SHARDS, ignore_errors=True)

    def committed(self) -> dict[str, int]:
        indices_of_stage: dict[str, set[int]] = {}
        paths = (self.path / _SHARDS).glob("*-*.parquet")
        for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            frame = _read_shard(path)
            if frame is not None and "token_id" in frame.columns:  # a damaged one will be computed again
                indices_of_stage.setdefault(path.name.rpartition("-")[0], set()).update(
                    frame["token_id"].to_list()
                )
        return {stage: len(ids) for stage, ids in indices_of_stage.items()}

    def _shard(self, stage: str, index: int) -> Path:
        return self.path / _SHARDS / f"{stage}-{index:06d}.parquet"


def _parquet(frame: pl.DataFrame, metadata: dict[str, str] | None = None) -> bytes:
    """Serialize in memory, so that a full disk raises an error with an errno when the bytes are written."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=metadata)
    return buffer.getvalue()


def _read_shard(path: Path) -> pl.DataFrame | None:
    try:
        content = path.read_bytes()
        start = content.rfind(_SEAL)
        end = start + len(_SEAL) + hashlib.sha256().digest_size
        seal = _SEAL + hashlib.sha256(content[:start] + content[end:]).digest()
        return pl.read_parquet(content) if start >= 0 and content[start:end] == seal else None
    except (*_DAMAGE, OSError):
        return None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): {repair_advice(path)}") from error


def require_version(version: object, newest: int, path: Path) -> None:
    if isinstance(version, int) and version > newest:
        raise RunError(
            f"{path} has schema version {version}, but this stickytoken reads versions up to {newest}: "
            "upgrade stickytoken"
        )


def validated(kind: type[Record], raw: Any, path: Path) -> Record:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"]) or "the document"
        raise RunError(
            f"{path} is not a valid record ({where}: {first['msg']}): {repair_advice(path)}"
        ) from error


def repair_advice(path: Path) -> str:
    if path.name != IDENTITY_FILE and (path.parent / IDENTITY_FILE).is_file():
        return "restore it, or move it away and run the same command again, which continues from the shards"
    return "restore it, or move the folder away and run the same command again"
