"""Detections in processes that are cut off, and what must be the same afterwards."""

import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import planted
from stickytoken import open_run


def started(target: Callable[..., None], *arguments: object) -> BaseProcess:
    process = planted.processes().Process(target=target, args=arguments)
    process.start()
    return process


def finished(target: Callable[..., None], *arguments: object) -> int | None:
    process = started(target, *arguments)
    process.join()
    return process.exitcode


def wait_for_shards(process: BaseProcess, folder: Path, count: int) -> None:
    shards = folder / "shards"
    while process.is_alive() and not (shards.is_dir() and len(list(shards.glob("*.parquet"))) >= count):
        time.sleep(0.001)


def died(
    detection: Callable[[Path, Path], None], model: Path, folder: Path, moment: int | str, marker: bytes = b""
) -> str:
    status = finished(planted.detect_and_die, detection, model, folder, moment, marker)
    assert status == -signal.SIGKILL, moment
    (leftover,) = folder.rglob("*.tmp")
    return leftover.name.removeprefix(".").rsplit(".", 2)[0]


def copied(run: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-a", str(run), str(folder)], check=True)
    return folder


def assert_same_run(folder: Path, uninterrupted: Path) -> None:
    """Two folders hold the same bytes of results, and the same numbers beside the time they took."""
    for name in ("tokens.parquet", "vocabulary.parquet", "plan.json"):
        assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert [path.name for path in folder.rglob("*.tmp")] == []
    ours = open_run(folder)
    theirs = open_run(uninterrupted)
    assert ours.result.model_copy(update={"seconds": 0}) == theirs.result.model_copy(update={"seconds": 0})
