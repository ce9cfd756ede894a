"""Time of a detection by Ray and by the local engine, and its peak memory.

Every detection runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench import MINILM, Results, commands, refuse, watched
from models import large_vocabulary


@dataclass(frozen=True)
class Case:
    """One detection, on two threads or so many Ray workers; kill kills one when its first shard is there."""

    model: str = MINILM
    device: str = "cpu"
    sample: int | None = None
    workers: int | None = None
    kill: bool = False


def one_case(case: str, out: Path) -> None:
    """Run one case, given as JSON, in this process."""
    import torch

    from stickytoken.detection import detect
    from stickytoken.encoders import load_encoder
    from stickytoken.measurement.engine import Progress
    from stickytoken.measurement.ray_engine import ray_engine
    from stickytoken.settings.profile import ProfileSettings

    given = Case(**json.loads(case))
    torch.set_num_threads(2)
    encoder = load_encoder(given.model, device=given.device)
    _ = encoder.identity
    with ExitStack() as stack:
        started = time.perf_counter()
        engine: Any = "local"
        if given.workers is not None:
            engine = stack.enter_context(ray_engine(encoder, workers=given.workers))
            engine.wait_until_ready()
        ready = time.perf_counter()
        killed: list[int] = []

        def kill_one(step: Progress) -> None:
            if given.kill and step.computed and step.stage != "mean similarity" and not killed:
                killed.append(engine.reports[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        settings = ProfileSettings()
        run = detect(
            encoder, sample=given.sample, settings=settings, out=out, engine=engine, progress=kill_one
        )
        ended = time.perf_counter()
    if given.kill and not killed:
        refuse("no worker was killed: too few shards")
    found = {
        "seconds": ended - ready,
        "start_seconds": ready - started,
        "sequences": run.result.sequences,
        "digest": hashlib.sha256((run.path / "tokens.parquet").read_bytes()).hexdigest(),
    }
    print(json.dumps(found))


def measured(case: Case, out: Path, *, memory: bool = False) -> dict[str, Any]:
    """Run a case in a fresh process; ``seconds`` are without loading the model and starting workers."""
    command = [sys.executable, __file__, "case", json.dumps(asdict(case)), str(out)]
    status, printed, _, peak = watched(command, memory=memory)
    if status:
        refuse(f"failed: {case}")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1]) | {"peak": peak}
    sys.stderr.write(f"{case}\n  {found}\n")
    return found


def compare_ray(results: Results, local: Case, folder: Path, turns: int) -> None:
    """Two workers of one core each against the local engine with two cores; the best of the turns counts.

    Memory is not watched: reading that of Ray's many processes would take a share of the two cores.
    """
    spread = replace(local, workers=2)
    found: dict[str, list[dict[str, Any]]] = {"local": [], "ray": []}
    for turn in range(turns):
        found["local"].append(measured(local, folder / f"local-{turn}"))
        found["ray"].append(measured(spread, folder / f"ray-{turn}"))
    killed = measured(replace(spread, kill=True), folder / "killed")
    here, ray = (min(own, key=lambda each: float(each["seconds"])) for own in found.values())
    slower = ray["seconds"] / here["seconds"] - 1
    with_start = (ray["seconds"] + ray["start_seconds"]) / here["seconds"] - 1
    title = (
        f"Ray with 2 workers of one core each against local with 2 cores, {MINILM}, {local.sample:,} tokens"
    )
    ours = f"{slower:+.0%} ({ray['seconds']:.0f} s to {here['seconds']:.0f} s)"
    ours += f"; {with_start:+.0%} with {ray['start_seconds']:.0f} s of start-up"
    results.check(title, "at most 15 % slower", ours, slower <= 0.15, **found)
    first, second = (pl.read_parquet(folder / name / "tokens.parquet") for name in ("ray-0", "local-0"))
    difference = float(np.abs((first["lift"] - second["lift"]).to_numpy()).max())
    same = first["verdict"].to_list() == second["verdict"].to_list()
    bar = "lifts equal to 1e-5, the same verdicts"
    ours = f"lifts differ by {difference:.1e}, verdicts {'the same' if same else 'DIFFER'}"
    results.check("the same, numbers", bar, ours, difference <= 1e-5 and same)
    identical = len({each["digest"] for each in (killed, *found["ray"])}) == 1
    title, bar = "Ray with and without a killed worker", "identical bytes of tokens.parquet"
    results.check(title, bar, "identical" if identical else "DIFFERENT", identical, killed=killed)


def run(device: str = "cpu", quick: bool = False, only: str | None = None) -> None:
    """The parts ray and memory, or --only one, in scaling_ray.json and scaling_memory.json.

    Peak memory is that of all processes together, on whole vocabularies at default settings. With --quick,
    samples and vocabularies are small.
    """
    base, load = Case(device=device), os.getloadavg()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if only in (None, "memory"):
            results = Results("scaling_memory", device, load=load)
            cases = {MINILM: (replace(base, sample=200 if quick else None), 2)}
            for entries, bar in ({3_000: 3, 5_000: 4} if quick else {150_000: 3, 250_000: 4}).items():
                model = large_vocabulary(folder / str(entries), entries)
                cases[f"tiny BERT, {entries:,} entries"] = (replace(base, model=model), bar)
            for title, (case, bar) in cases.items():
                found = measured(case, folder / f"memory of {title}", memory=True)
                gigabytes = found["peak"] / 2**30
                ours = f"{gigabytes:.2f} GB ({found['sequences']:,} texts, {found['seconds']:.0f} s)"
                passed, detail = gigabytes <= bar, asdict(case) | found
                results.check(title, f"peak memory at most {bar} GB", ours, passed, **detail)
            results.finish(strict=False)
        if only in (None, "ray"):
            results = Results("scaling_ray", device, load=load)
            compare_ray(results, replace(base, sample=3000 if quick else 8000), folder, 1 if quick else 3)
            results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, run, case=one_case)
