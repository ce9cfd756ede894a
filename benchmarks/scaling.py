"""Measure the time of a detection by Ray and by the local engine, and the peak memory of a detection.

Every detection runs in a process of its own. The part `ray` needs the package ray; the part `memory` reads
/proc and needs Linux. A full measurement takes about twenty minutes on 2 CPU cores.
Run it with `python benchmarks/scaling.py run`, or with the option --quick for small samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench import MINILM, Results, commands, refuse, watched
from models import large_vocabulary

# Maximum peak memory of a detection with MINILM, in GB.
MINILM_GIGABYTES = 2
# The same for a tiny model, keyed by the number of its vocabulary entries.
GIGABYTES_BY_ENTRIES = {150_000: 3, 250_000: 4}
# A vocabulary of 3,000 entries lacks so many words of the bundled corpus that a detection refuses the model.
QUICK_GIGABYTES_BY_ENTRIES = {5_000: 3, 8_000: 4}
# Number of tokens to examine with MINILM. A full measurement of memory examines the whole vocabulary.
RAY_SAMPLE = 8000
QUICK_RAY_SAMPLE = 3000
QUICK_MEMORY_SAMPLE = 200
# Number of detections by Ray and by the local engine. The fastest of each counts.
TURNS = 3
QUICK_TURNS = 1
# Maximum share by which Ray may be slower than the local engine.
MOST_SLOWER = 0.15
# Maximum difference between the erased shares of a token that the two engines measure.
ERASED_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """One detection. The result files contain the fields under their names.

    Attributes:
        model: Name or path of the model.
        device: Device of the model.
        sample: Number of tokens to examine; None for the whole vocabulary.
        workers: Number of Ray workers; None for the local engine with two threads.
        kill: Whether a Ray worker is killed during the detection.
    """

    model: str = MINILM
    device: str = "cpu"
    sample: int | None = None
    workers: int | None = None
    kill: bool = False


def run_case(case: str, out: Path) -> None:
    """Run one detection in this process, and print its measurements as a line of JSON.

    `run` starts this command in a new process for every detection. CASE is a JSON object with the model, the
    device, the sample, the number of Ray workers and whether to kill one. OUT is the folder of the run.
    """
    import torch

    from stickytoken import load_encoder
    from stickytoken.detection import detect
    from stickytoken.measurement.engine import Progress
    from stickytoken.measurement.ray_engine import ray_engine
    from stickytoken.settings.profile import ProfileSettings

    detection = Case(**json.loads(case))
    torch.set_num_threads(2)
    encoder = load_encoder(detection.model, device=detection.device)
    # The identity is a hash of the weights. It is computed here, so that its time is not measured.
    encoder.identify()
    with ExitStack() as stack:
        started = time.perf_counter()
        engine: Any = "local"
        if detection.workers is not None:
            engine = stack.enter_context(ray_engine(encoder, workers=detection.workers))
            engine.wait_until_ready()
        ready = time.perf_counter()
        killed_processes: list[int] = []

        def kill_one_worker(step: Progress) -> None:
            """Kill a worker when the first shard of a stage has been computed."""
            if not detection.kill or killed_processes:
                return
            if step.computed:
                process = engine.reports[0].pid
                killed_processes.append(process)
                os.kill(process, signal.SIGKILL)

        run = detect(
            encoder,
            sample=detection.sample,
            settings=ProfileSettings(),
            out=out,
            engine=engine,
            progress=kill_one_worker,
        )
        ended = time.perf_counter()
    if detection.kill and not killed_processes:
        refuse("no worker was killed: too few shards")
    measurements = {
        "seconds": ended - ready,
        "start_seconds": ready - started,
        "sequences": run.result.sequences,
        "digest": hashlib.sha256((run.path / "tokens.parquet").read_bytes()).hexdigest(),
    }
    print(json.dumps(measurements))


def measure_case(case: Case, out: Path, *, memory: bool = False) -> dict[str, Any]:
    """Run a detection in a new process, and return its measurements.

    Args:
        case: The detection.
        out: Folder of the run.
        memory: Whether to watch the memory of the process and of its descendants.

    Returns:
        ``seconds`` without loading the model and starting the workers, ``start_seconds`` of starting the
        workers, ``sequences`` (the number of texts), ``digest`` (the SHA-256 of tokens.parquet), and ``peak``
        (the peak memory in bytes, or 0 if the memory is not watched).
    """
    command = [sys.executable, __file__, "case", json.dumps(asdict(case)), str(out)]
    status, output, _, peak_bytes = watched(command, memory=memory)
    if status:
        refuse(f"failed: {case}")
    last_line = output.splitlines()[-1]
    measurements: dict[str, Any] = json.loads(last_line)
    measurements["peak"] = peak_bytes
    sys.stderr.write(f"{case}\n  {measurements}\n")
    return measurements


def check_ray(results: Results, local: Case, folder: Path, turns: int) -> None:
    """Compare Ray, with two workers of one core each, with the local engine on two cores.

    Memory is not watched: reading the memory of Ray's many processes would take a share of the two cores.

    Args:
        results: Results that the checks are added to.
        local: The detection by the local engine.
        folder: Folder in which the folders of the runs are made.
        turns: Number of detections by each engine.
    """
    with_ray = replace(local, workers=2)
    local_measurements = []
    ray_measurements = []
    for turn in range(turns):
        local_measurements.append(measure_case(local, folder / f"local-{turn}"))
        ray_measurements.append(measure_case(with_ray, folder / f"ray-{turn}"))
    after_kill = measure_case(replace(with_ray, kill=True), folder / "killed")
    check_speed(results, local, local_measurements, ray_measurements)
    check_tokens(results, folder / "local-0", folder / "ray-0")
    digests = {measurements["digest"] for measurements in (after_kill, *ray_measurements)}
    is_identical = len(digests) == 1
    results.check(
        "Ray with and without a killed worker",
        "identical bytes of tokens.parquet",
        "identical" if is_identical else "DIFFERENT",
        is_identical,
        killed=after_kill,
    )


def check_speed(
    results: Results,
    local: Case,
    local_measurements: list[dict[str, Any]],
    ray_measurements: list[dict[str, Any]],
) -> None:
    """Check that the fastest detection by Ray is hardly slower than the fastest by the local engine."""
    fastest_local = min(local_measurements, key=seconds_of)
    fastest_ray = min(ray_measurements, key=seconds_of)
    local_seconds = fastest_local["seconds"]
    ray_seconds = fastest_ray["seconds"]
    start_seconds = fastest_ray["start_seconds"]
    slower = ray_seconds / local_seconds - 1
    slower_with_start = (ray_seconds + start_seconds) / local_seconds - 1
    results.check(
        f"Ray with 2 workers of one core each against local with 2 cores, {MINILM}, {local.sample:,} tokens",
        "at most 15 % slower",
        f"{slower:+.0%} ({ray_seconds:.0f} s to {local_seconds:.0f} s); "
        f"{slower_with_start:+.0%} with {start_seconds:.0f} s of start-up",
        slower <= MOST_SLOWER,
        local=local_measurements,
        ray=ray_measurements,
    )


def seconds_of(measurements: Mapping[str, Any]) -> float:
    """Return the seconds of a detection, without loading the model and starting the workers."""
    return float(measurements["seconds"])


def check_tokens(results: Results, local_folder: Path, ray_folder: Path) -> None:
    """Check that a run by the local engine and a run by Ray have the same erased shares and verdicts."""
    ray_tokens = pl.read_parquet(ray_folder / "tokens.parquet")
    local_tokens = pl.read_parquet(local_folder / "tokens.parquet")
    erased_differences = (ray_tokens["erased"] - local_tokens["erased"]).to_numpy()
    largest_difference = float(np.abs(erased_differences).max())
    has_same_verdicts = ray_tokens["verdict"].to_list() == local_tokens["verdict"].to_list()
    verdicts = "the same" if has_same_verdicts else "DIFFER"
    results.check(
        "the same, numbers",
        "erased shares equal to 1e-5, the same verdicts",
        f"erased shares differ by {largest_difference:.1e}, verdicts {verdicts}",
        largest_difference <= ERASED_TOLERANCE and has_same_verdicts,
    )


def check_memory(results: Results, device: str, folder: Path, *, quick: bool) -> None:
    """Check the peak memory of detections with a small model, and with models of large vocabularies.

    Args:
        results: Results that the checks are added to.
        device: Device of the models.
        folder: Folder in which the large models and the folders of the runs are made.
        quick: Whether to use a small sample and small vocabularies.
    """
    sample = QUICK_MEMORY_SAMPLE if quick else None
    gigabytes_by_entries = QUICK_GIGABYTES_BY_ENTRIES if quick else GIGABYTES_BY_ENTRIES
    cases = {MINILM: Case(device=device, sample=sample)}
    most_gigabytes = {MINILM: MINILM_GIGABYTES}
    for entries, gigabytes in gigabytes_by_entries.items():
        title = f"tiny BERT, {entries:,} entries"
        cases[title] = Case(model=large_vocabulary(folder / str(entries), entries), device=device)
        most_gigabytes[title] = gigabytes
    for title, case in cases.items():
        measurements = measure_case(case, folder / f"memory of {title}", memory=True)
        peak = measurements["peak"] / 2**30
        results.check(
            title,
            f"peak memory at most {most_gigabytes[title]} GB",
            f"{peak:.2f} GB ({measurements['sequences']:,} texts, {measurements['seconds']:.0f} s)",
            peak <= most_gigabytes[title],
            **asdict(case),
            **measurements,
        )


def run(device: str = "cpu", quick: bool = False, only: str | None = None) -> None:
    """Measure the peak memory of detections, and compare Ray with the local engine.

    The part `memory` measures the peak memory of all processes of a detection together, over whole
    vocabularies and with the default settings. The results are in benchmarks/results/scaling_memory.json. The
    part `ray` compares the times, erased shares and verdicts of the two engines. The results are in
    scaling_ray.json.

    --only memory or --only ray measures one part. With --quick, the samples and vocabularies are small.
    """
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if only in (None, "memory"):
            results = Results("scaling_memory", device, load=load)
            check_memory(results, device, folder, quick=quick)
            results.finish(strict=False)
        if only in (None, "ray"):
            results = Results("scaling_ray", device, load=load)
            local = Case(device=device, sample=QUICK_RAY_SAMPLE if quick else RAY_SAMPLE)
            check_ray(results, local, folder, QUICK_TURNS if quick else TURNS)
            results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, run, case=run_case)
