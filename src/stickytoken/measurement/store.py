"""The files of a run folder.

Only one process writes to the folder at a time. The file of a shard is always complete.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import polars as pl
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from stickytoken.errors import InputError, RunError
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Pattern of temporary files. Processes that are killed leave such files behind.
_LEFTOVERS = ".*.tmp"


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, so that readers never see an incomplete file.

    A temporary file is written, flushed to disk and renamed. If the path is a device or a pipe, all content
    is collected in memory and written at the end. If the path is a symbolic link, the target of the link is
    replaced.

    Yields:
        The stream to write to. After an error, nothing is written.

    Raises:
        RunError: the file cannot be written. Errors that the ``with`` block raises are passed on unchanged.
    """
    # If this process is killed while it writes, the next process that locks the folder removes the temporary
    # file.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        mode = path.stat().st_mode
    except OSError:  # the file does not exist yet, or the write below will raise a clearer error
        mode = None
    is_device_or_pipe = mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    if is_device_or_pipe:
        buffer = io.BytesIO()  # the writer may need to seek, which a pipe cannot do
        yield buffer
        with _explain_write_errors(path), path.open("wb", buffering=0) as pipe:
            remaining_bytes = buffer.getbuffer()
            while remaining_bytes:  # a pipe may take only some of the bytes at a time
                written_count = pipe.write(remaining_bytes)
                remaining_bytes = remaining_bytes[written_count:]
        return
    try:
        with _explain_write_errors(path):
            if target.is_symlink():  # only if the links form a loop
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with _NamedStream(temporary, path) as stream:
            if mode is not None:  # nobody may read the new file who could not read the old one
                with _explain_write_errors(path):
                    temporary.chmod(stat.S_IMODE(mode))
            yield stream
            stream.flush()
            with _explain_write_errors(path):
                os.fsync(stream.fileno())
        with _explain_write_errors(path):
            temporary.replace(target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):  # after the rename, there is no temporary file
            temporary.unlink()


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file with `open_atomically`.

    Args:
        path: the file.
        content: the bytes to write, or a function that writes them to a stream.

    Raises:
        RunError: the file cannot be written.
    """
    with open_atomically(path) as stream, _explain_write_errors(path):
        if isinstance(content, bytes):
            stream.write(content)
        else:
            content(stream)


class _NamedStream(io.BufferedWriter):
    """Writes a temporary file. An error names the path to which the temporary file will be renamed."""

    def __init__(self, temporary: Path, path: Path) -> None:
        self._path = path
        # `_explain_write_errors` is not used here, because Ctrl-C at the end of its block would leave the
        # file open.
        try:
            super().__init__(temporary.open("xb", buffering=0))
        except OSError as error:
            raise _make_write_error(path, error) from error

    def write(self, content: ReadableBuffer, /) -> int:
        with _explain_write_errors(self._path):
            return super().write(content)

    def flush(self) -> None:
        with _explain_write_errors(self._path):
            super().flush()


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    # Turns an OSError in a ``with`` block into a RunError.
    try:
        yield
    except OSError as error:
        raise _make_write_error(path, error) from error


def _make_write_error(path: Path, error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        continues = "; it continues where it stopped" if _is_result(path) else ""
        return RunError(
            f"no space left to write {path}: free some space and run the same command again{continues}"
        )
    return RunError(f"{path} cannot be written: {error.strerror or error}")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist.

    Raises:
        RunError: the folder cannot be created.
    """
    with _explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def move_folder(folder: Path, target: Path) -> None:
    """Flush a folder to disk, and rename it to a target that does not exist yet or is an empty folder.

    Raises:
        RunError: the target cannot be written.
    """
    with _explain_write_errors(target):
        for path in [*folder.rglob("*"), folder]:
            if path.is_dir():
                sync_folder(path)
            else:
                _sync_file(path)
        with suppress(FileNotFoundError):
            target.rmdir()  # Windows cannot rename a folder to an existing folder
        folder.replace(target)
        sync_folder(target.parent)


def _sync_file(path: Path) -> None:
    # On Windows, only files that are open for writing can be flushed.
    with path.open("rb" if os.name == "posix" else "rb+") as stream:
        os.fsync(stream.fileno())


def require_writable(folder: Path) -> None:
    """Raise a RunError if files cannot be written to a folder. The folder need not exist yet."""
    with _explain_write_errors(folder):
        # Whether the folder can be created depends on the nearest of its parents that exists.
        ancestors = (folder, *folder.absolute().parents)
        existing = next((ancestor for ancestor in ancestors if ancestor.exists()), folder)
        if not existing.is_dir():
            reason = "it is a file" if existing == folder else f"{existing} is a file"
        elif not os.access(existing, os.W_OK | os.X_OK):
            reason = f"{existing} is read-only"
        else:
            return
    raise RunError(f"{folder} cannot be written: {reason}")


def require_file_place(path: Path, others: Iterable[str | Path | None] = ()) -> None:
    """Raise an error if no file can be written at the path. Called before any long work.

    The path must not be a folder, its parent folder must exist, and the file must replace none that
    `require_other_file` protects. If the file is a device or a pipe, its folder need not be writable.
    """
    try:
        is_folder = path.is_dir()
        has_folder = path.parent.is_dir()
        is_device = path.exists() and not path.is_file()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    if is_folder:
        raise InputError(f"{path} is a folder: pass the name of a file to write")
    if not has_folder:
        raise InputError(f"the folder {path.parent} does not exist: create it, or pass another file")
    if not is_device:
        require_other_file(path, others)
        require_writable(Path(os.path.realpath(path)).parent)


def require_other_file(path: Path, others: Iterable[str | Path | None] = ()) -> None:
    """Raise an InputError if a file to write would replace an input, another output, or a file of a run.

    Args:
        path: the file to write.
        others: the inputs and other outputs of the command: files, folders of documents, or ``-`` for
            standard input; None for what the user did not pass.
    """
    target = Path(os.path.realpath(path))
    with _explain_write_errors(path):
        exists = target.is_file()
    for other in others:
        if other is None:
            continue
        if is_same_file(path, other):
            replaced = "standard input" if str(other) == "-" else other
            raise InputError(
                f"writing {path} would replace {replaced}, which this command reads or writes too: pass "
                "another file"
            )
        if exists and file_path("an input", other).resolve() in target.parents:
            raise InputError(f"{path} is one of the documents in {other}: pass another file")
    if exists and _is_result(target):
        raise InputError(f"{path} is a part of the results in {path.parent}: pass another file")


def is_same_file(path: Path, other: str | Path) -> bool:
    """Return whether two paths lead to one file, which need not exist yet. Standard input is ``-``."""
    other_path = file_path("an input", other)
    with suppress(OSError):  # one of them does not exist
        is_stdin = str(other) == "-"
        return os.path.samestat(path.stat(), os.fstat(0) if is_stdin else other_path.stat())
    return os.path.realpath(path) == os.path.realpath(other_path)


def _is_result(path: Path) -> bool:
    # Returns whether the path is that of a record, a table or a shard in a result folder. Reports and other
    # files that a user may have put there are none.
    is_in_shards = path.parent.name == _SHARDS
    folder = path.parent.parent if is_in_shards else path.parent
    is_run = (folder / RUN_FILE).is_file()
    if not is_run and not (folder / IDENTITY_FILE).is_file():
        return False
    if path.suffix == ".parquet":
        return _is_shard(path) if is_in_shards else path.name in TABLE_FILES
    if is_run:
        return path.name in (RUN_FILE, IDENTITY_FILE, PLAN_FILE, TIME_FILE, NORMALIZER_FILE)
    return path.suffix == ".json"


def _is_shard(path: Path) -> bool:
    return re.fullmatch(r".+-\d{6,}\.parquet", path.name) is not None


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk, on systems that require this."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_name(kind: str, identity: str) -> str:
    """Return a folder name for a measurement: its kind, and the first characters of its identity."""
    return f"{kind}-{identity[:12]}"


def default_folder(model: str, kind: str, identity: str) -> Path:
    """Return the path of the default folder for a measurement of a model, inside the folder ``runs``."""
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name).strip("-.") or "model"
    return Path("runs") / f"{stem}-{folder_name(kind, identity)}"


Record = TypeVar("Record", bound=BaseModel)
Validated = TypeVar("Validated")

RUN_FILE = "run.json"
IDENTITY_FILE = "identity.json"
PLAN_FILE = "plan.json"
NORMALIZER_FILE = "normalizer.json"
VOCABULARY_FILE = "vocabulary.parquet"
TOKENS_FILE = "tokens.parquet"
TIME_FILE = "time.json"
TABLE_FILES = frozenset(
    {
        VOCABULARY_FILE,
        TOKENS_FILE,
        # Of runs of `profile`, audits, scans and explanations:
        "effects.parquet",
        "effects_axes.parquet",
        "documents.parquet",
        "measures.parquet",
        "heads.parquet",
        "pairs.parquet",
        "attribution.parquet",
        "benign.parquet",
        "neighbours.parquet",
    }
)
"""The tables of all measurements. No command replaces them with another output."""
_SHARDS = "shards"
_LOCK = ".lock"
# Minimum number of seconds between two updates of TIME_FILE. If a run is killed, the recorded time is too
# short by at most this interval plus the time of the current shard.
_TIME_INTERVAL = 10
# Bytes that mark the position of the SHA-256 in the file of a shard.
_SEAL = b"stickytoken sha256"
# Errors that Polars raises for a damaged file. PanicException is not a subclass of PolarsError.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


class ShardCost(NamedTuple):
    """The cost of one or more shards: seconds of computation, and number of encoded texts."""

    seconds: float
    sequences: int


class TimeRecord(BaseModel):
    """The content of time.json: how long all sessions of a measurement took."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float


class ResultFolder:
    """Reads and writes the files of a result folder. Its methods raise a RunError if a file cannot be used.

    Args:
        path: the folder.
        started_at: when this measurement session began, by `time.perf_counter`. If ``started_at`` is
            passed, the wall time of all sessions is recorded in the folder.
    """

    def __init__(self, path: Path, started_at: float | None = None) -> None:
        self.path = path
        self._started_at = started_at
        self._first_records: dict[str, BaseModel] = {}  # keyed by the name of the file
        self._has_begun = False
        self._earlier_seconds = 0.0
        self._last_recorded_at: float | None = None  # when TIME_FILE was last written; None outside a session

    @property
    def seconds(self) -> float:
        """Total wall time of all sessions so far, including this session, in seconds."""
        session = 0.0 if self._started_at is None else time.perf_counter() - self._started_at
        return self._earlier_seconds + session

    def prepare(self, first_records: dict[str, BaseModel]) -> None:
        """Say what `begin` writes: records, keyed by the names of their files."""
        self._first_records = first_records

    def begin(self) -> None:
        """Write the first records, and start recording the time. Only the first call has an effect."""
        if self._has_begun:
            return
        self._has_begun = True
        for name, record in self._first_records.items():
            self.write_record(name, record)
        if self._started_at is None:  # the time is not recorded
            return
        earlier = self.read_record(TIME_FILE, TimeRecord)
        if earlier is not None:
            self._earlier_seconds = earlier.seconds
        self._last_recorded_at = self._started_at

    def end_session(self) -> None:
        """If a session is being recorded, record its final time, and stop recording."""
        if self._last_recorded_at is not None:
            self._record_time()
            self._last_recorded_at = None

    def _record_time(self) -> None:
        self._last_recorded_at = time.perf_counter()
        self.write_record(TIME_FILE, TimeRecord(seconds=round(self.seconds, 1)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if necessary, and lock it against other processes in a ``with`` block.

        After the block, the time of the session is recorded, if `begin` was called.

        Raises:
            RunError: another process is writing to the folder, or the folder cannot be created.
        """
        with self._explain_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK)
            lock.acquire(timeout=0)
        try:
            # Temporary files of processes that were killed.
            for folder in (self.path, self.path / _SHARDS):
                for leftover in folder.glob(_LEFTOVERS):
                    leftover.unlink(missing_ok=True)
            yield
        finally:
            with suppress(RunError):  # a failure to write must not hide the error that ended the measurement
                self.end_session()
            lock.release()

    def require_unlocked(self) -> None:
        """Raise a RunError if another process is writing to the folder."""
        with self._explain_errors():
            was_locked = (self.path / _LOCK).is_file()
        if was_locked:  # the lock file stays after the lock is released, so the lock is tried
            with self.locked():
                pass

    def exists(self) -> bool:
        """Return whether a file or folder exists at the path."""
        with self._explain_errors():
            return self.path.exists()

    def holds_run(self) -> bool:
        """Return whether the folder contains the record of a run."""
        with self._explain_errors():
            return (self.path / RUN_FILE).is_file()

    def holds_other_files(self, record_file: str) -> bool:
        """Return whether the path is a file, or a folder that has files but no measurement.

        The lock, temporary files and an empty folder for shards do not count as files.

        Args:
            record_file: name of the record file, which shows that the folder contains a measurement.
        """
        with self._explain_errors():
            if not self.path.is_dir():
                return self.path.exists()
            if (self.path / record_file).is_file() or (self.path / IDENTITY_FILE).is_file():
                return False
            shards = self.path / _SHARDS
            entries = list(self.path.iterdir())
            if shards.is_dir():
                entries += shards.iterdir()
            return any(
                entry != shards and entry.name != _LOCK and not entry.match(_LEFTOVERS) for entry in entries
            )

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except Timeout as error:
            raise RunError(
                f"{self.path} is being written by another process: wait for it, or choose another folder"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"{self.path} cannot be used as a run folder: {reason}") from error

    def read_record(
        self, name: str, kind: type[Record], version: int | None = None, command: str = ""
    ) -> Record | None:
        """Read a record from a JSON file, or return None if the file does not exist.

        Args:
            name: name of the file.
            kind: class of the record.
            version: the schema version that the record must have; None for a record without versions.
            command: name of the command that writes the record, for the error about another version.
        """
        path = self.path / name
        with self._explain_errors():
            is_present = path.is_file()
        if not is_present:
            return None
        raw = read_json(path)
        if version is not None and isinstance(raw, dict):
            _require_version(raw.get("schema_version"), version, path, command)
        return validated(kind, raw, path)

    def write_record(self, name: str, record: BaseModel) -> None:
        """Write a record as JSON."""
        try:
            content = record.model_dump_json(indent=2).encode() + b"\n"
        except PydanticSerializationError as error:
            # pydantic turns a KeyboardInterrupt during serialization into its own error.
            if "KeyboardInterrupt" in str(error):
                raise KeyboardInterrupt from error
            raise
        write_atomically(self.path / name, content)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file. Characters that UTF-8 cannot encode are escaped."""
        write_atomically(self.path / name, text.encode("utf-8", "backslashreplace"))

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        """Write a table as Parquet."""
        write_atomically(self.path / name, _to_parquet(frame))

    def read_table(
        self, name: str, columns: Sequence[str] | Mapping[str, Any] = (), filled: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read and check a Parquet table.

        Args:
            name: name of the file.
            columns: columns that the table must have. If this is a mapping from columns to types, the columns
                must also have these types, and their numbers must be finite.
            filled: columns that must not have nulls.

        Raises:
            RunError: the file is missing or damaged, or the table does not meet the requirements of
                ``columns`` and ``filled``.
        """
        path = self.path / name
        if not path.is_file():
            raise RunError(f"{self.path} has no {name}: run {command_of(self.path)} again to write it")
        advice = repair_advice(path)
        try:
            # Read the bytes here, because polars cannot open a path that is not valid Unicode.
            table = pl.read_parquet(path.read_bytes())
        except (*_DAMAGE, OSError) as error:
            raise RunError(f"{path} is damaged: {advice}") from error
        missing = [column for column in columns if column not in table.columns]
        if missing:
            raise RunError(f"{path} has no column {missing[0]!r}: {advice}")
        types = columns if isinstance(columns, Mapping) else {}
        for column in columns:
            problem = _find_problem(table[column], types.get(column), is_filled=column in filled)
            if problem is not None:
                raise RunError(f"{path} has {problem} in column {column!r}: {advice}")
        return table

    def write_shard(
        self, stage: str, index: int, rows: Sequence[Mapping[str, Any]], cost: ShardCost
    ) -> pl.DataFrame:
        """Write a shard, and return its rows as a table.

        The SHA-256 of the content (see `_SEAL`) is inserted before the Parquet footer, where Parquet readers
        ignore it.
        """
        frame = pl.DataFrame(list(rows), infer_schema_length=None)
        metadata = {"seconds": f"{cost.seconds:.3f}", "sequences": str(cost.sequences)}
        content = _to_parquet(frame, metadata)
        path = self._shard_path(stage, index)
        # A Parquet file ends with its footer, the size of the footer in 4 bytes, and 4 bytes that name the
        # format.
        footer_size = int.from_bytes(content[-8:-4], "little")
        footer_start = len(content) - 8 - footer_size
        seal = _SEAL + hashlib.sha256(content).digest()
        make_folder(path.parent)
        write_atomically(path, content[:footer_start] + seal + content[footer_start:])
        # Save the wall time of a session now and then, so that one that is killed keeps most of it.
        last_recorded_at = self._last_recorded_at
        if last_recorded_at is not None and time.perf_counter() - last_recorded_at >= _TIME_INTERVAL:
            self._record_time()
        return frame

    def read_shard(
        self, stage: str, index: int, keys: Sequence[int], key: str = "token_id"
    ) -> pl.DataFrame | None:
        """Read a shard. Return None if the shard is missing or damaged, or does not have the expected rows.

        Args:
            stage: name of the stage.
            index: number of the shard.
            keys: expected values of the key column, in order.
            key: name of the key column, which identifies a row.
        """
        frame = _read_undamaged_shard(self._shard_path(stage, index))
        is_expected = frame is not None and key in frame.columns and frame[key].to_list() == list(keys)
        return frame if is_expected else None

    def total_cost(self) -> ShardCost:
        """Return the total cost of all shards.

        The seconds are summed over all workers, so they are not wall time.
        """
        recorded_costs = []  # metadata of the shards, into which `write_shard` puts the costs
        for path in self._list_shards():
            with suppress(*_DAMAGE):  # a shard of a stage that this session did not need may be damaged
                recorded_costs.append(pl.read_parquet_metadata(io.BytesIO(path.read_bytes())))
        return ShardCost(
            seconds=sum(float(cost.get("seconds", 0)) for cost in recorded_costs),
            sequences=sum(int(cost.get("sequences", 0)) for cost in recorded_costs),
        )

    def remove_shards_from(self, stage: str, first_unused: int) -> None:
        """Delete the shards of a stage from an index on.

        They exist if the stage was once divided into more shards.
        """
        for path in (self.path / _SHARDS).glob(f"{glob.escape(stage)}-*.parquet"):
            index = path.stem.removeprefix(f"{stage}-")
            # If another stage's name begins with the name of this stage, what follows is no number.
            if index.isdecimal() and int(index) >= first_unused:
                path.unlink(missing_ok=True)

    def shard_count(self) -> int:
        """Return the number of shards in the folder."""
        return len(self._list_shards())

    def _list_shards(self) -> list[Path]:
        return sorted(path for path in (self.path / _SHARDS).glob("*.parquet") if _is_shard(path))

    def remove_shards(self) -> None:
        """Delete all shards."""
        shutil.rmtree(self.path / _SHARDS, ignore_errors=True)

    def _shard_path(self, stage: str, index: int) -> Path:
        return self.path / _SHARDS / f"{stage}-{index:06d}.parquet"


def _find_problem(values: pl.Series, required_type: Any, *, is_filled: bool) -> str | None:
    # Returns what is wrong with a column of a table, as part of an error message; None if nothing is wrong.
    # Without a required type, numbers need not be finite.
    if required_type is not None and values.dtype != required_type:
        return f"{values.dtype} values instead of {required_type}"
    if required_type is not None and values.dtype.is_float() and not values.is_finite().all():
        return "a number that is not finite"
    if is_filled and values.null_count():
        return "an empty value"
    return None


def _to_parquet(frame: pl.DataFrame, metadata: dict[str, str] | None = None) -> bytes:
    # Builds the bytes in memory, so that a full disk raises an OSError only when they are written to the
    # file.
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=metadata)
    return buffer.getvalue()


def _read_undamaged_shard(path: Path) -> pl.DataFrame | None:
    # Returns None if the file is missing or damaged.
    try:
        content = path.read_bytes()
        # The seal, a marker and a hash of all other bytes, stands before the Parquet footer.
        start = content.rfind(_SEAL)
        end = start + len(_SEAL) + hashlib.sha256().digest_size
        expected_seal = _SEAL + hashlib.sha256(content[:start] + content[end:]).digest()
        is_intact = start >= 0 and content[start:end] == expected_seal
        return pl.read_parquet(content) if is_intact else None
    except (*_DAMAGE, OSError):
        return None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): {repair_advice(path)}") from error


def _require_version(version: object, current: int, path: Path, command: str) -> None:
    """Raise a RunError unless a file has the schema version that this stickytoken writes."""
    if type(version) is not int or version < 1:  # a bool is an int
        written = "missing" if version is None else json.dumps(version)[:40]
        raise RunError(
            f"{path} is not a valid record (schema_version is {written}, but must be a positive integer): "
            f"{repair_advice(path)}"
        )
    if version == current:
        return
    written = f"{path} has schema version {version}, but this stickytoken reads version {current}"
    if version > current:
        raise RunError(f"{written}: upgrade stickytoken")
    raise RunError(f"{written}: run `{command}` again, in another folder")


def validated(kind: type[Validated], raw: Any, path: Path) -> Validated:
    """Validate the JSON values of a file, and return them as a record or as settings.

    Raises:
        RunError: a value is invalid. The message names the first invalid value.
    """
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"]) or "the document"
        raise RunError(
            f"{path} is not a valid record ({where}: {first['msg']}): {repair_advice(path)}"
        ) from error


def repair_advice(path: Path) -> str:
    """Return advice on what to do about a damaged file in a run folder."""
    again = f"run {command_of(path.parent)} again"
    # Every file except the identity can be made again from the identity and the shards.
    if path.name != IDENTITY_FILE and (path.parent / IDENTITY_FILE).is_file():
        return f"restore it, or move it away and {again}, which continues from the shards"
    return f"restore it, or move the folder away and {again}"


def command_of(folder: Path) -> str:
    """Return how messages name the command that writes a folder: others read it, and would not repair it."""
    is_run = any((folder / name).is_file() for name in (RUN_FILE, VOCABULARY_FILE))
    return "the same `stickytoken detect`" if is_run else "the command that wrote it"
