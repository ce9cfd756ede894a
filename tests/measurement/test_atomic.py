"""Atomic writes: a file is complete or absent."""

import errno
import os
import stat

import pytest

from stickytoken.errors import RunError
from stickytoken.measurement.store import write_atomically


def write(content):
    return lambda stream: stream.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_pipe_stays_a_pipe_and_a_link_a_link(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody reads would block the writer
    write_atomically(pipe, write(b"piped"))
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


FAILURES = [
    ("os.fsync", errno.ENOSPC, r"no space left to write .*file\.bin: free some"),
    ("pathlib.Path.open", errno.EDQUOT, r"no space left to write .*file\.bin: free some"),
    ("pathlib.Path.replace", errno.ENOSPC, r"no space left to write .*file\.bin: free some"),
    (None, errno.EDQUOT, r"no space left to write .*file\.bin: free some"),  # the writer itself
    ("os.fsync", errno.EIO, r"file\.bin cannot be written: Input/output error"),
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
    with pytest.raises(RunError, match=message) as raised:
        write_atomically(path, write(b"new") if where else fails)
    monkeypatch.undo()
    assert isinstance(raised.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


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
