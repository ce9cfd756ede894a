"""Detections in processes that are cut off, and what must be the same afterwards."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

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


def killed_again_and_again(
    detection: Callable[[Path, Path], None],
    model: Path,
    folder: Path,
    kills: int,
    in_shards: int,
    committed: Callable[[Path], dict[str, Any]] = planted.shards_of,
    further_shards: int = 7,
    all_shards: int | None = None,
) -> dict[str, Any]:
    """Kill a measurement at random moments; no kill may lose or change a committed shard.

    If ``all_shards`` are committed before a kill, the measurement begins anew, as if it had ended.
    """
    moments = random.Random(0)
    earlier_files: dict[str, Any] = {}
    done = fruitful = 0
    while done < kills or fruitful < in_shards:
        process = started(detection, model, folder)
        if done % 3:
            goal = len(earlier_files) + moments.randint(1, further_shards)
            while process.is_alive() and len(committed(folder)) < goal:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.01))
        else:
            time.sleep(moments.uniform(0, 0.4))
        process.kill()
        process.join()
        if process.exitcode == 0 or len(committed(folder)) == all_shards:  # it was faster than the kill
            shutil.rmtree(folder)
            earlier_files = {}
            continue
        assert process.exitcode == -signal.SIGKILL
        done += 1
        files = committed(folder)
        assert {name: files.get(name) for name in earlier_files} == earlier_files
        fruitful += len(files) > len(earlier_files)
        earlier_files = files
    return earlier_files


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
