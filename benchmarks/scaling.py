"""Time and memory of a detection: vocabulary, carriers and workers varied; Ray beside the local engine.

python benchmarks/scaling.py run               # an hour on 2 CPU cores
python benchmarks/scaling.py run --quick       # minutes: small samples, small vocabularies
python benchmarks/scaling.py run --only memory # one part: ray, scaling or memory

Every detection runs in a process of its own. Peak memory is the largest sum of the resident memory of that
process and its children, read five times a second; not in the comparison with Ray, where reading the memory
of Ray's many processes would take a share of the two cores. Ray and the local engine take turns, and the best
of each counts: on a shared machine only ratios within a run mean something.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench import MINILM, Check, commands, finish, refuse

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One detection of a model, or of a sample, in a process with so many threads, or on so many Ray workers.

    The budget is in texts per token; adaptive gives the upper tail more. With kill, a worker is killed when
    its first shard is there.
    """

    model: str = MINILM
    device: str = "cpu"
    sample: int | None = None
    budget: float | None = None
    adaptive: bool = True
    workers: int | None = None
    threads: int = 2
    kill: bool = False


@dataclass(frozen=True)
class Measured:
    """What a detection took, the model loaded and workers ready; peak is the memory of all processes
    together, in bytes where they were watched, and the digest that of tokens.parquet."""

    seconds: float
    start_seconds: float
    sequences: int
    peak: int | None
    digest: str


def compute(case: Case, out: Path) -> dict[str, Any]:
    import torch

    from stickytoken.detection import detect
    from stickytoken.encoders import load_encoder
    from stickytoken.measurement.engine import Progress
    from stickytoken.measurement.ray_engine import ray_engine
    from stickytoken.methods.profile.anchors import ProfileSettings

    torch.set_num_threads(case.threads)
    encoder = load_encoder(case.model, device=case.device)
    _ = encoder.identity
    with ExitStack() as stack:
        started = time.perf_counter()
        engine: Any = "local"
        if case.workers is not None:
            engine = stack.enter_context(ray_engine(encoder, workers=case.workers))
            engine.wait_until_ready()
        ready = time.perf_counter()
        killed: list[int] = []

        def kill_one(step: Progress) -> None:
            if case.kill and step.computed and step.stage != "mean similarity" and not killed:
                killed.append(engine.reports[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        settings = ProfileSettings(adaptive=case.adaptive)
        if case.budget is not None:
            settings = replace(settings, budget=case.budget)
        run = detect(
            encoder, sample=case.sample, settings=settings, out=out, engine=engine, progress=kill_one
        )
        ended = time.perf_counter()
    if case.kill and not killed:
        refuse("no worker was killed: too few shards")
    return {
        "seconds": ended - ready,
        "start_seconds": ready - started,
        "sequences": run.result.sequences,
        "digest": hashlib.sha256((run.path / "tokens.parquet").read_bytes()).hexdigest(),
    }


def measured(case: Case, out: Path, *, watched: bool = True) -> Measured:
    """Run a case in a fresh process and watch its memory."""
    command = [sys.executable, __file__, "case", json.dumps(asdict(case)), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            peak[0] = max(peak[0], resident(process.pid))

    watcher = threading.Thread(target=watch)
    if watched:
        watcher.start()
    printed, _ = process.communicate()
    stop.set()
    if watched:
        watcher.join()
    if process.returncode:
        refuse(f"failed: {case}")
    found = Measured(peak=peak[0] if watched else None, **json.loads(printed.splitlines()[-1]))
    sys.stderr.write(f"{case}\n  {found}\n")
    return found


def gigabytes(found: Measured) -> float:
    return (found.peak or 0) / GIB


def resident(root: int) -> int:
    """Resident bytes of a process and all its descendants (Linux); memory that they share counts once.

    Ray's object store is shared memory that every worker maps.
    """
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(status[1])
    total = 0
    for process in parents:
        ancestor = process
        while ancestor not in (0, root):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root:
            total += proportional(process)
    return total


def proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def large_vocabulary(folder: Path, entries: int) -> str:
    """A tiny random BERT that reads as many words as there are entries."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    from stickytoken.data import load_sentences

    syllables = [a + b for a, b in itertools.product("bcdfghjklmnprstvwz", "aeiou")]
    made = ("".join(parts) for size in (2, 3) for parts in itertools.product(syllables, repeat=size))
    read = (
        "".join(sign for sign in word if sign.isalpha())
        for text in load_sentences(None).texts
        for word in text.lower().split()
    )
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!?0123456789"]
    words = itertools.islice(dict.fromkeys(itertools.chain(first, filter(None, read), made)), entries)
    tokenizer = BertTokenizer({word: place for place, word in enumerate(words)}, model_max_length=128)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=entries,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.4,
    )
    BertModel(config).save_pretrained(folder / "backbone")
    tokenizer.save_pretrained(folder / "backbone")
    module = Transformer(str(folder / "backbone"))
    SentenceTransformer(modules=[module, Pooling(32, "mean")], device="cpu").save(str(folder / "model"))
    return str(folder / "model")


def ray_checks(folder: Path, device: str, sample: int, turns: int, adaptive: bool) -> list[Check]:
    """Two workers of one core each against the local engine with two cores, turn by turn."""
    local = Case(device=device, sample=sample, adaptive=adaptive)
    spread = replace(local, workers=2)
    found: dict[str, list[Measured]] = {"local": [], "ray": []}
    for turn in range(turns):
        found["local"].append(measured(local, folder / f"local-{turn}", watched=False))
        found["ray"].append(measured(spread, folder / f"ray-{turn}", watched=False))
    killed = measured(replace(spread, kill=True), folder / "killed", watched=False)
    ours, theirs = (pl.read_parquet(folder / name / "tokens.parquet") for name in ("ray-0", "local-0"))
    difference = float(np.abs((ours["lift"] - theirs["lift"]).to_numpy()).max())
    same = ours["verdict"].to_list() == theirs["verdict"].to_list()
    best = {name: min(own, key=lambda each: each.seconds) for name, own in found.items()}
    slower = best["ray"].seconds / best["local"].seconds - 1
    with_start = (best["ray"].seconds + best["ray"].start_seconds) / best["local"].seconds - 1
    detail = {name: [asdict(each) for each in own] for name, own in found.items()}
    return [
        Check(
            f"Ray with 2 workers of one core each against local with 2 cores, {MINILM}, {sample:,} tokens",
            "at most 15 % slower",
            f"{slower:+.0%} ({best['ray'].seconds:.0f} s to {best['local'].seconds:.0f} s); "
            f"{with_start:+.0%} with {best['ray'].start_seconds:.0f} s of start-up",
            slower <= 0.15,
            detail,
        ),
        Check(
            "the same, numbers",
            "lifts equal to 1e-5, the same verdicts",
            f"lifts differ by {difference:.1e}, verdicts {'the same' if same else 'DIFFER'}",
            difference <= 1e-5 and same,
            {"difference": difference},
        ),
        Check(
            "Ray with and without a killed worker",
            "identical bytes of tokens.parquet",
            "identical" if killed.digest == found["ray"][0].digest else "DIFFERENT",
            len({killed.digest, *(each.digest for each in found["ray"])}) == 1,
            {"killed": asdict(killed)},
        ),
    ]


def scaling_checks(folder: Path, device: str, sizes: tuple[int, ...], adaptive: bool) -> list[Check]:
    """Vocabulary, carriers and workers, one varied at a time; without bars."""
    middle = Case(device=device, sample=sizes[-1], adaptive=adaptive)
    cases = {
        **{f"{size:,} tokens": replace(middle, sample=size) for size in sizes},
        **{f"{budget} texts a token": replace(middle, budget=budget) for budget in (8, 12)},
        "1 thread": replace(middle, threads=1),
        **{f"{count} workers": replace(middle, workers=count) for count in (1, 2)},
    }
    checks = []
    for place, (name, case) in enumerate(cases.items()):
        found = measured(case, folder / f"case-{place}")
        rate = found.sequences / found.seconds
        ours = f"{rate:,.0f} texts/s, {gigabytes(found):.2f} GB, {found.seconds:.0f} s"
        checks.append(Check(name, "none: for comparison", ours, True, asdict(case) | asdict(found)))
    return checks


def memory_checks(
    folder: Path, device: str, sizes: dict[int, int], minilm: int | None, adaptive: bool
) -> list[Check]:
    """Peak memory of whole vocabularies at default settings, against the bars in GB."""
    cases = {MINILM: (Case(device=device, sample=minilm, adaptive=adaptive), 2)}
    for entries, bar in sizes.items():
        model = large_vocabulary(folder / f"model-{entries}", entries)
        cases[f"tiny BERT, {entries:,} entries"] = (Case(model=model, device=device, adaptive=adaptive), bar)
    checks = []
    for place, (name, (case, bar)) in enumerate(cases.items()):
        found = measured(case, folder / f"memory-{place}")
        ours = f"{gigabytes(found):.2f} GB ({found.sequences:,} texts, {found.seconds:.0f} s)"
        bar_text = f"peak memory at most {bar} GB"
        detail = asdict(case) | asdict(found) | {"model": name}
        checks.append(Check(name, bar_text, ours, gigabytes(found) <= bar, detail))
    return checks


def run(
    device: str = "cpu",
    quick: bool = False,
    only: str | None = None,
    sample: int | None = None,
    turns: int | None = None,
    name: str = "scaling",
) -> None:
    """The parts ray, scaling and memory, or --only one; --sample tokens and --turns are of that with Ray."""
    sample, turns = sample or (3000 if quick else 8000), turns or (1 if quick else 3)
    sizes = (100, 200) if quick else (500, 1000, 2000)
    vocabularies = {3_000: 3, 5_000: 4} if quick else {150_000: 3, 250_000: 4}
    parts: dict[str, Callable[[Path], list[Check]]] = {
        "memory": lambda place: memory_checks(place, device, vocabularies, 200 if quick else None, not quick),
        "ray": lambda place: ray_checks(place, device, sample, turns, not quick),
        "scaling": lambda place: scaling_checks(place, device, sizes, not quick),
    }
    checks: list[Check] = []
    for part, work in parts.items():
        if only in (None, part):
            with tempfile.TemporaryDirectory() as folder:
                checks += work(Path(folder))
    finish(checks, name, device, load=os.getloadavg())


def one_case(case: str, out: Path) -> None:
    """Run one case, given as JSON, in this process."""
    print(json.dumps(compute(Case(**json.loads(case)), out)))


if __name__ == "__main__":
    commands(__doc__, run, case=one_case)
