"""The run folder: one writer, atomic and complete files, readable errors, and no foreign files."""

import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import planted
import stickytoken
from naming import naming
from stickytoken import open_run
from stickytoken.audits import open_audit
from stickytoken.audits.results import TABLES
from stickytoken.detection.run_folder import RunFolder
from stickytoken.errors import InputError, RunError
from stickytoken.explanation.files import TABLE_SCHEMAS, read_explanation
from stickytoken.machine import digest
from stickytoken.measurement.resume import read_identity
from stickytoken.measurement.store import (
    TABLE_FILES,
    ResultFolder,
    ShardCost,
    open_atomically,
    require_other_file,
    write_atomically,
)
from stickytoken.methods.profile.estimates import AXES_FILE, EFFECTS_FILE
from stickytoken.repairs import open_repair
from stickytoken.scanning.results import DOCUMENTS_FILE, open_scan

GOLDEN = Path(stickytoken.__file__).parent / "demo" / "example" / "all-MiniLM-L6-v2"


@pytest.fixture
def run_copy(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run.path, tmp_path / "run"))


@pytest.mark.slow
def test_a_run_whose_record_is_damaged_or_lost_is_continued_from_its_shards(encoder, tmp_path):
    folder = tmp_path / "run"
    planted.detect_thirty(encoder, folder, planted.SHARD_PROBES)
    tables = (folder / "tokens.parquet").read_bytes()
    shards = planted.shards_of(folder)
    (folder / "run.json").write_bytes(b"{")
    with pytest.raises(RunError, match=naming(folder / "run.json", "damaged", "continues")):
        planted.detect_thirty(encoder, folder, planted.SHARD_PROBES)
    (folder / "run.json").rename(tmp_path / "run.json")
    run = planted.detect_thirty(encoder, folder, planted.SHARD_PROBES)
    assert planted.shards_of(folder) == shards
    assert (run.path / "tokens.parquet").read_bytes() == tables


def test_a_run_whose_record_is_lost_is_not_continued_as_another_one(encoder, tmp_path):
    folder = tmp_path / "run"
    planted.detect_thirty(encoder, folder)
    (folder / "run.json").unlink()
    before = planted.files_of(folder)
    with pytest.raises(RunError, match=naming(folder, "settings.copies")):
        planted.detect_thirty(encoder, folder, copies=2)
    assert planted.files_of(folder) == before


def test_a_damaged_record_without_an_identity_beside_it_is_not_to_be_deleted(run_copy):
    (run_copy / "identity.json").unlink()
    (run_copy / "run.json").write_bytes(b"{")
    with pytest.raises(RunError, match=naming(run_copy / "run.json", "damaged", "restore")) as error:
        open_run(run_copy)
    assert "elete" not in str(error.value)


def test_a_second_process_is_refused_until_the_first_is_killed(encoder, tmp_path):
    folder = tmp_path / "run"
    code = "from pathlib import Path; from stickytoken.detection.run_folder import RunFolder\n"
    code += f"with RunFolder(Path({str(folder)!r})).locked(): print('held', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=naming(folder)):
            planted.detect_thirty(encoder, folder)
        assert planted.files_of(folder) == {}
        holder.kill()
    assert planted.detect_thirty(encoder, folder).result.scored == 30


def test_a_writer_removes_the_leftovers_of_a_killed_one_and_nothing_else(tmp_path):
    (tmp_path / "shards").mkdir()
    leftovers = [tmp_path / ".plan.json.k2j3.tmp", tmp_path / "shards" / ".score-000003.parquet.a_b.tmp"]
    other_files = [tmp_path / "notes.tmp", tmp_path / ".hidden", tmp_path / "shards" / "readme.txt"]
    for path in (*leftovers, *other_files):
        path.write_bytes(b"half")
    with RunFolder(tmp_path).locked():
        assert not any(path.exists() for path in leftovers)
        assert all(path.read_bytes() == b"half" for path in other_files)


@pytest.mark.parametrize("name", ["thesis.txt", ".bashrc", "tokens.parquet", "shards/train-00000.parquet"])
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(encoder, tmp_path, name):
    folder = tmp_path / "run"
    (folder / "shards").mkdir(parents=True)
    (folder / name).write_bytes(b"mine")
    (folder / ".mine.tmp").write_bytes(b"mine too")
    before = sorted(folder.rglob("*")), planted.files_of(folder)
    with pytest.raises(RunError, match=naming(folder, "files")):
        planted.detect_thirty(encoder, folder)
    assert (sorted(folder.rglob("*")), planted.files_of(folder)) == before


NO_VERSION = "is not a valid record .schema_version is missing, but must be a positive integer"
RUN_RECORDS = {
    "binary": (b"\xff\xfe\x00binary", "damaged"),
    "endless nesting": (b"[" * 100_000, "damaged"),
    "an empty object": (b"{}", NO_VERSION),
    "a version alone": (b'{"schema_version": 7}', naming("identity")),
    "older": (b'{"schema_version": 3}', naming(3, 7, "detect")),
    "newer": (b'{"schema_version": 8, "news": true}', naming(8, 7, "upgrade")),
}


@pytest.mark.parametrize(("content", "message"), RUN_RECORDS.values(), ids=RUN_RECORDS)
def test_a_run_json_that_cannot_be_read_is_an_error_for_reader_and_writer_and_stays(
    encoder, run_copy, content, message
):
    (run_copy / "run.json").write_bytes(content)
    before = planted.files_of(run_copy)
    for use in (open_run, lambda folder: planted.detect_thirty(encoder, folder)):
        with pytest.raises(RunError, match=message):
            use(run_copy)
    assert planted.files_of(run_copy) == before


READERS = {
    "audit.json": open_audit,
    "explanation.json": read_explanation,
    "identity.json": lambda folder: read_identity(ResultFolder(folder)),
    "repair.json": open_repair,
    "run.json": open_run,
    "scan.json": open_scan,
}


@pytest.mark.parametrize(("name", "read"), READERS.items(), ids=READERS)
def test_no_record_without_a_version_passes_for_a_current_one(tmp_path, name, read):
    (tmp_path / name).write_text("{}", "utf-8")
    with pytest.raises(RunError, match=NO_VERSION) as error:
        read(tmp_path)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"schema_version": value}, naming("schema_version", json.dumps(value)))
            for value in (0, True, 1.0, "1")
        ),
        ({"flavour": "sweet"}, naming("flavour")),
        ({"method": "profile"}, naming("result.looked_at")),
        ({"method": "guess"}, naming("method", "'profile'", "'std'")),
    ],
)
def test_a_record_that_is_not_valid_is_named_by_what_is_wrong(run_copy, changes, message):
    planted.edit_record(run_copy, **changes)
    with pytest.raises(RunError, match=message) as error:
        open_run(run_copy)
    assert str(run_copy / "run.json") in str(error.value)
    assert len(str(error.value)) < 250 + len(str(run_copy))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no table at all", None, pl.DataFrame({"a": [1]})])
def test_a_result_table_that_cannot_be_read_is_an_error_that_says_what_to_do(run_copy, write, content):
    path = run_copy / "tokens.parquet"
    path.unlink()
    if content is not None:
        write(path, content)
    with pytest.raises(RunError, match=naming(run_copy, path.name)):
        open_run(run_copy)


def test_a_damaged_or_missing_plan_is_an_error_that_says_what_to_do(encoder, run_copy):
    (run_copy / "tokens.parquet").rename(run_copy.parent / "tokens.parquet")
    (run_copy / "plan.json").write_text('{"mean_similarity": ', encoding="utf-8")
    with pytest.raises(RunError, match=naming(run_copy / "plan.json", "damaged", "restore")):
        planted.detect_thirty(encoder, run_copy)
    (run_copy / "plan.json").unlink()
    (run_copy.parent / "tokens.parquet").rename(run_copy / "tokens.parquet")
    with pytest.raises(RunError, match=naming(run_copy, "plan.json")):
        _ = open_run(run_copy).plan


def test_a_run_that_is_not_there_or_not_one_or_not_finished_is_not_opened(finished_run, run_copy, tmp_path):
    with pytest.raises(RunError, match=naming(tmp_path / "absent")):
        open_run(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=naming(tmp_path / "empty", "run.json")):
        open_run(tmp_path / "empty")
    with pytest.raises(RunError, match=naming(finished_run.path / "run.json")):
        open_run(finished_run.path / "run.json")
    planted.edit_record(run_copy, result=None)
    with pytest.raises(RunError, match=naming(run_copy, "finished")):
        open_run(run_copy)


def test_the_hash_of_a_stored_identity_has_not_changed():
    """Otherwise no stored run could be continued: change IDENTITY_VERSION only on purpose."""
    record = json.loads((GOLDEN / "run.json").read_text("utf-8"))
    assert digest(record["identity_parts"]) == record["identity"]


def shard_rows():
    generator = random.Random(0)
    return [{"token_id": token, "score": generator.random(), "by": [1.0, token / 7]} for token in range(50)]


@pytest.fixture
def shard(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.write_shard("score", 0, shard_rows(), ShardCost(1.25, 10))
    return folder


def began(seconds_ago):
    return time.perf_counter() - seconds_ago


def test_the_time_of_a_folder_adds_up_its_sessions(tmp_path):
    for session_seconds, total_seconds in ((1000, 1000), (500, 1500), (2000, 3500)):
        folder = RunFolder(tmp_path, began(session_seconds))
        with folder.locked():
            folder.begin()
            assert round(folder.seconds, -2) == total_seconds


def test_a_shard_records_the_time_for_a_kill(tmp_path):
    folder = RunFolder(tmp_path, began(1000))
    with folder.locked():
        folder.begin()
        folder.write_shard("score", 0, shard_rows(), ShardCost(1.25, 10))
        recorded = json.loads((tmp_path / "time.json").read_text("utf-8"))
    assert round(recorded["seconds"], -2) == 1000


def test_a_session_that_did_not_begin_records_no_time(tmp_path):
    with RunFolder(tmp_path, began(1000)).locked():
        pass
    with RunFolder(tmp_path).locked():
        pass
    assert not (tmp_path / "time.json").exists()


def test_a_shard_comes_back_as_it_was_written_and_none_for_other_tokens_stages_or_places(shard):
    assert shard.read_shard("score", 0, range(50)).to_dicts() == shard_rows()
    assert shard.read_shard("score", 0, range(1, 51)) is None
    assert shard.read_shard("score", 0, range(49)) is None
    assert shard.read_shard("score", 1, range(50)) is None
    assert shard.read_shard("validate", 0, range(50)) is None


def test_a_shard_that_was_cut_off_anywhere_or_has_no_seal_is_none(shard):
    (path,) = (shard.path / "shards").iterdir()
    content = path.read_bytes()
    for size in range(0, len(content), 31):
        path.write_bytes(content[:size])
        assert shard.read_shard("score", 0, range(50)) is None, size
    pl.DataFrame(shard_rows()).write_parquet(path)
    assert shard.read_shard("score", 0, range(50)) is None


def test_a_shard_with_a_flipped_bit_raises_nothing_and_never_gives_other_numbers(shard, capfd):
    (path,) = (shard.path / "shards").iterdir()
    content = path.read_bytes()
    generator = random.Random(1)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        rows = shard.read_shard("score", 0, range(50))
        assert rows is None or rows.to_dicts() == shard_rows()
    capfd.readouterr()  # what a panic of Polars writes


@pytest.fixture
def forbidden(tmp_path):
    closed = tmp_path / "closed"
    was_root = os.geteuid() == 0
    (closed / "run").mkdir(parents=True)
    (closed / "notes.txt").write_bytes(b"x")
    closed.chmod(0o000)
    if was_root:  # whom permissions do not bind
        os.seteuid(65534)
    yield closed
    if was_root:
        os.seteuid(0)
    closed.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions only")
@pytest.mark.parametrize("name", [".", "run", "new"])
def test_a_folder_that_may_not_be_entered_is_an_error(forbidden, name):
    folder = RunFolder(forbidden / name)
    with pytest.raises(RunError, match="Permission denied"), folder.locked():
        pass
    with pytest.raises(RunError, match="Permission denied"):
        folder.holds_other_files("run.json")
    with pytest.raises(RunError, match="Permission denied"):
        open_run(forbidden / name)


def writes(content):
    return lambda stream: stream.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_pipe_stays_a_pipe_and_a_link_a_link(tmp_path):
    pipe = tmp_path / "pipe"
    link = tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody reads would block the writer
    write_atomically(pipe, writes(b"piped"))
    read = os.read(reader, 100)
    os.close(reader)
    link.symlink_to("file.bin")
    write_atomically(link, b"linked")
    assert read == b"piped"
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert (tmp_path / "file.bin").read_bytes() == b"linked"
    assert names(tmp_path) == ["file.bin", "link", "pipe"]


def test_links_in_a_circle_and_names_too_long_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for path in (tmp_path / "one", tmp_path / ("x" * 300)):
        with pytest.raises(RunError, match=naming(path)):
            write_atomically(path, b"content")
    assert names(tmp_path) == ["one", "two"]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whatever_interrupts_the_writer_the_old_file_survives_and_no_temporary_one_remains(tmp_path, error):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def interrupted(stream):
        stream.write(b"half of the new content")
        stream.flush()
        assert len(names(tmp_path)) == 2
        raise error

    with pytest.raises(type(error)) as raised:
        write_atomically(path, interrupted)
    assert raised.value is error
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


FAILURES = [
    ("os.fsync", errno.ENOSPC, "space"),
    ("pathlib.Path.open", errno.EDQUOT, "space"),
    ("pathlib.Path.replace", errno.ENOSPC, "space"),
    (None, errno.EDQUOT, "space"),  # the writer itself
    ("os.fsync", errno.EIO, "Input/output error"),
]


@pytest.mark.parametrize(("where", "code", "message"), FAILURES)
def test_a_failing_disk_is_named_wherever_it_shows_and_the_old_file_survives(
    tmp_path, monkeypatch, where, code, message
):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def fails(*_args, **_options):
        raise OSError(code, os.strerror(code))

    if where:
        monkeypatch.setattr(where, fails)
    with pytest.raises(RunError, match=naming(path, message)) as raised:
        write_atomically(path, writes(b"new") if where else fails)
    monkeypatch.undo()
    assert isinstance(raised.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("name", ["tokens.parquet", "shards/pilot-000000.parquet", "cleaned.txt"])
def test_only_a_command_that_continues_says_so_if_the_disk_is_full(tmp_path, name):
    """A run continues from its shards; a file that somebody writes beside them is written from the start."""

    def fails(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for folder in (tmp_path / "plain", tmp_path / "run"):
        (folder / "shards").mkdir(parents=True)
    (tmp_path / "run" / "identity.json").write_text("{}")
    messages = []
    for folder in ("plain", "run"):
        with pytest.raises(RunError, match="space") as raised:
            write_atomically(tmp_path / folder / name, fails)
        messages.append(str(raised.value))
    assert ["continues" in message for message in messages] == [False, name != "cleaned.txt"]


def test_an_error_of_the_block_is_not_taken_for_one_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError), open_atomically(tmp_path / "file.bin"):
        (tmp_path / "missing").read_bytes()
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [4096, 1_000_000], ids=["as it is closed", "as it is written"])
def test_a_file_that_cannot_grow_is_named(tmp_path, size):
    resource = pytest.importorskip("resource")  # POSIX only
    path = tmp_path / "file.bin"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(RunError, match=naming(path)), open_atomically(path) as stream:
            stream.write(bytes(size))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


def test_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    """A power cut after the rename must not leave an empty file: content, name, folder, in that order."""
    steps = []
    fsync, replace = os.fsync, type(tmp_path).replace

    def recorded_fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content"
        steps.append((kind, os.fstat(descriptor).st_size if kind == "content" else None))
        fsync(descriptor)

    def recorded_replace(path, target):
        steps.append(("name", None))
        return replace(path, target)

    monkeypatch.setattr("os.fsync", recorded_fsync)
    monkeypatch.setattr("pathlib.Path.replace", recorded_replace)
    write_atomically(tmp_path / "file.bin", writes(b"12345"))
    assert steps == [("content", 5), ("name", None), ("folder", None)]


@pytest.mark.skipif(os.name != "posix", reason="POSIX file modes only")
def test_a_file_has_the_mode_that_the_user_gives_to_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file.bin", writes(b"new"))
        (tmp_path / "plain.bin").write_bytes(b"new")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file.bin", "plain.bin")]
    assert modes == [0o640, 0o640]


@pytest.mark.skipif(os.name != "posix", reason="POSIX file modes only")
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomically(path, writes(b"new"))
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_tables_of_every_measurement_are_protected_and_foreign_ones_are_not(run_copy):
    written = {
        DOCUMENTS_FILE,
        EFFECTS_FILE,
        AXES_FILE,
        *TABLES,
        *(f"{name}.parquet" for name in TABLE_SCHEMAS),
    }
    assert written <= TABLE_FILES
    shards = run_copy / "shards"
    for path in (run_copy / "tokens.parquet", next(shards.glob("*.parquet"))):
        with pytest.raises(InputError, match=naming(path)):
            require_other_file(path)
    count = ResultFolder(run_copy).shard_count()
    for path in (run_copy / "own.parquet", shards / "own.parquet"):
        pl.DataFrame({"text": ["a"]}).write_parquet(path, metadata={"sequences": "1000000"})
        require_other_file(path)
    assert ResultFolder(run_copy).shard_count() == count


def continued_with(run, changes):
    """Give a finished run the record of an interrupted one that other software and hardware began."""
    record = json.loads((run / "run.json").read_text("utf-8"))
    record["result"] = None
    for name, values in changes.items():
        record[name] |= values
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    (run / "tokens.parquet").unlink()


def test_a_run_that_is_continued_elsewhere_records_both_places(encoder, tmp_path):
    folder = tmp_path / "run"
    began = planted.detect_thirty(encoder, folder).record
    earlier = {"versions": {"torch": "1.0"}, "hardware": {"torch_threads": "99", "device_name": "H200"}}
    continued_with(folder, earlier | {"model": {"device": "cuda"}})
    for _ in range(2):  # a third session adds nothing
        run = planted.detect_thirty(encoder, folder)
        assert run.record.versions == began.versions | {"torch": f"1.0, later {began.versions['torch']}"}
        threads = f"99, later {began.hardware['torch_threads']}"
        assert run.record.hardware["torch_threads"] == threads
        assert run.record.hardware["device_name"] == "H200, later cpu"
        assert run.record.model.device == "cuda, later cpu"
        assert run.record.started == began.started
        (folder / "tokens.parquet").unlink()
        continued_with_nothing = json.loads((folder / "run.json").read_text("utf-8")) | {"result": None}
        (folder / "run.json").write_text(json.dumps(continued_with_nothing), "utf-8")


def test_a_run_that_is_continued_where_it_began_or_only_opened_records_one_place(encoder, tmp_path):
    folder = tmp_path / "run"
    began = planted.detect_thirty(encoder, folder).record
    continued_with(folder, {})
    run = planted.detect_thirty(encoder, folder)
    assert (run.record.versions, run.record.hardware) == (began.versions, began.hardware)
    record = json.loads((folder / "run.json").read_text("utf-8"))
    record["versions"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(record), "utf-8")
    assert planted.detect_thirty(encoder, folder).record.versions["torch"] == "1.0"
