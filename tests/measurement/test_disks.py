"""Run folders on disks that are full, inaccessible or read-only."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import planted
from stickytoken import open_run
from stickytoken.detection.run_folder import RunFolder
from stickytoken.errors import RunError


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let a test mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(place, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_disk_that_is_mounted_for_reading_only_is_an_error_for_the_writer_alone(
    encoder, small_disk, finished_run
):
    shutil.copytree(finished_run.path, small_disk / "run")
    remount(small_disk, "ro")
    assert open_run(small_disk / "run").tokens.equals(finished_run.tokens)
    with pytest.raises(RunError, match=r"new cannot be written: .*disk is read-only"):
        planted.detect_thirty(encoder, small_disk / "new")


@pytest.fixture
def forbidden():
    """A folder without permissions for the current user."""
    if os.name != "posix":
        pytest.skip("POSIX permissions only")
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    closed = base / "closed"
    (closed / "run").mkdir(parents=True)
    (closed / "notes.txt").write_bytes(b"x")
    closed.chmod(0o000)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    yield closed
    if was_root:
        os.seteuid(0)
    closed.chmod(0o700)
    shutil.rmtree(base)


@pytest.mark.parametrize("name", [".", "run", "new"])
def test_a_folder_that_may_not_be_entered_is_an_error(forbidden, name):
    folder = RunFolder(forbidden / name)
    with pytest.raises(RunError, match="Permission denied"), folder.locked():
        pass
    with pytest.raises(RunError, match="Permission denied"):
        folder.holds_other_files()
    with pytest.raises(RunError, match="Permission denied"):
        open_run(forbidden / name)
