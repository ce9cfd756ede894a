"""Atomic writes: a file is complete or absent."""

import errno
import os
import stat
import threading

import pytest

from stickytoken.errors import RunError
from stickytoken.measurement.store import remove_leftovers, write_atomically


def write(content):
    return lambda stream: stream.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_created_and_then_replaced(tmp_path):
    path = tmp_path / "file.bin"
    write_atomically(path, write(b"first"))
    assert path.read_bytes() == b"first"
    write_atomically(path, write(b"second, longer"))
    write_atomically(path, write(b"3"))
    assert path.read_bytes() == b"3"
    assert names(tmp_path) == ["file.bin"]


def test_a_pipe_stays_a_pipe_and_a_link_a_link(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, write(b"x" * 100_000))
    reader.join()
    link.symlink_to("file.bin")
    write_atomically(link, b"linked")
    assert read == [b"x" * 100_000]
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert (tmp_path / "file.bin").read_bytes() == b"linked"
    assert names(tmp_path) == ["file.bin", "link", "pipe"]


def test_links_in_a_circle_and_names_too_long_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for path in (tmp_path / "one", tmp_path / ("x" * 300)):
        with pytest.raises(RunError, match=f"{path} cannot be written"):
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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["fsync", "write", "open", "replace"])
def test_a_full_disk_is_said_to_be_full_wherever_it_shows(tmp_path, monkeypatch, where, code):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def full(*_args, **_options):
        raise OSError(code, os.strerror(code))

    if where == "fsync":
        monkeypatch.setattr("os.fsync", full)
    elif where == "open":
        monkeypatch.setattr("pathlib.Path.open", full)
    elif where == "replace":
        monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(RunError, match=r"no space left to write .*file\.bin: free some") as raised:
        write_atomically(path, full if where == "write" else write(b"new"))
    monkeypatch.undo()
    assert isinstance(raised.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_another_failure_of_the_disk_is_named(tmp_path, monkeypatch):
    def broken(_descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(RunError, match=r"file\.bin cannot be written: Input/output error"):
        write_atomically(tmp_path / "file.bin", write(b"new"))
    assert names(tmp_path) == []


def test_a_missing_folder_is_an_error_with_the_path(tmp_path):
    with pytest.raises(RunError, match=r"absent/file\.bin cannot be written: No such file or directory"):
        write_atomically(tmp_path / "absent" / "file.bin", write(b"new"))


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
    write_atomically(tmp_path / "file.bin", write(b"12345"))
    assert steps == [("content", 5), ("name", None), ("folder", None)]


def test_a_reader_beside_the_writer_sees_one_whole_content_or_the_other(tmp_path):
    path = tmp_path / "file.bin"
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    write_atomically(path, write(contents[0]))
    done = threading.Event()
    seen = []

    def read():
        while not done.is_set():
            seen.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        write_atomically(path, write(contents[turn % 2]))
    done.set()
    reader.join()
    assert seen
    assert all(content in contents for content in seen)


@pytest.mark.skipif(os.name != "posix", reason="POSIX file modes only")
def test_a_file_has_the_mode_that_the_user_gives_to_new_files(tmp_path):
    """Results have the same permissions as other new files in the folder."""
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file.bin", write(b"new"))
        (tmp_path / "plain.bin").write_bytes(b"new")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file.bin", "plain.bin")]
    assert modes == [0o640, 0o640]


def test_only_leftover_temporary_files_of_the_folder_itself_are_removed(tmp_path):
    kept = [tmp_path / "file.tmp", tmp_path / ".hidden", tmp_path / "run.json", tmp_path / "in" / ".a.tmp"]
    (tmp_path / "in").mkdir()
    leftovers = [tmp_path / ".run.json.abc.tmp", tmp_path / ".x.tmp"]
    for path in (*kept, *leftovers):
        path.write_bytes(b"x")
    remove_leftovers(tmp_path)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in leftovers)
    remove_leftovers(tmp_path / "absent")
