"""What a GPU gives: equal verdicts at lower precision, whole runs in seconds, texts a second, memory.

One prepared script for at most ten minutes on one card. Every step is written to results/gpu.json as soon
as it ends, and a step that is there for the same card and version is not repeated. A step that fails is
recorded with its error, and the next one begins.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bench
import stickytoken
from bench import MINILM, PLANTED, by_turns, commands, refuse, watched, write_json
from models import CACHE, plain_model, planted_encoder
from stickytoken import ProfileSettings
from stickytoken.detection import Run, open_run
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.insertion import Placement
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Progress, Shard, compute_shard
from stickytoken.measurement.resume import hardware
from stickytoken.methods.std import StdSettings
from stickytoken.vocabulary import categorize
from throughput import library, prepared, texts_of

# Seconds that a user waits at most, for imports, loading and the report too.
DETECT_GOAL = 30
STD_GOAL = 300
# Tokens of the throughput step. With 121 texts each, 68 fill one shard of a run, and 544 fill eight.
SHARD_TOKENS, MANY_TOKENS = 68, 544
BATCH_SIZES = (32, 128, 512)
PROFILE = ProfileSettings()
STD = StdSettings()


@dataclass
class Visit:
    """One call of the script: what it measures, where, until when, and what it has found."""

    model: str
    device: str
    mpnet: Path
    rows: Path  # planted rows for the packaged model; where they are missing, the model is left as it is
    correctness_tokens: int
    sample: int | None  # of the tokens of whole runs; None is all
    work: Path  # for run folders; a run that was cut off continues from its folder
    ends: float  # on the clock of time.monotonic
    finished: list[str] = field(default_factory=list)  # steps
    checks: list[dict[str, Any]] = field(default_factory=list)
    step: str = ""  # that is under way

    @property
    def card(self) -> str:
        found = hardware(self.device)
        return found.get("device_name", found["machine"])

    @property
    def seconds_left(self) -> float:
        return self.ends - time.monotonic()

    def check(self, name: str, bar: str, ours: str, passed: object = True, /, **detail: Any) -> None:
        """Record and print what a step found."""
        print(f"{self.step}: {name}: {ours}", flush=True)
        found = {"step": self.step, "name": name, "bar": bar, "ours": ours, "passed": bool(passed)}
        self.checks.append(found | {"detail": detail})
        self.save()

    def save(self) -> None:
        about = {"card": self.card, "model": Path(self.model).name, "finished": self.finished}
        write_json("gpu", self.device, **about, checks=self.checks)

    def recall(self) -> None:
        """Take over the steps that an earlier visit finished with this card, model and version."""
        path = bench.RESULTS / "gpu.json"
        if not path.is_file():
            return
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["versions"]["stickytoken"]
        ours = (self.card, Path(self.model).name, stickytoken.__version__)
        if (document["card"], document["model"], version) == ours:
            self.finished = document["finished"]
            self.checks = [check for check in document["checks"] if check["step"] in self.finished]


def precisions(device: str) -> list[Precision]:
    """The lower precisions that a device computes in."""
    if device == "cpu":
        return [Precision.BFLOAT16]
    if device.startswith("cuda"):
        return [Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16]
    return [Precision.BFLOAT16, Precision.FLOAT16]


def gpu_memory(device: str) -> int | None:
    """Bytes that torch has reserved on the card at most, since the last call of `forget_memory`."""
    import torch

    return torch.cuda.max_memory_reserved(device) if device.startswith("cuda") else None


def forget_memory(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def gigabytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"


def correctness(visit: Visit) -> bool:
    """The verdicts of a sample on the card, in each precision of the screen, against float32 on the CPU."""
    has_rows = visit.model == MINILM and visit.rows.is_file()

    def load(device: str) -> IdEncoder:
        if has_rows:
            return planted_encoder(visit.rows, 1.0, device)
        return load_encoder(visit.model, device=device)

    on_cpu = load("cpu")
    planted = np.load(visit.rows)["token_ids"].tolist() if has_rows else []
    others = [token.id for token in categorize(on_cpu.tokenizer).available if token.id not in planted]
    count = min(visit.correctness_tokens, len(others))
    drawn = np.random.default_rng(0).choice(others, size=count, replace=False).tolist()
    tokens = planted + drawn

    def detected(encoder: IdEncoder, precision: Precision | None, folder: str) -> Run:
        settings = replace(PROFILE, screen_precision=precision)
        out = visit.work / "correctness" / folder
        return stickytoken.detect(encoder, settings=settings, tokens=tokens, out=out, evidence=False)

    expected = detected(on_cpu, None, "cpu")
    on_device = load(visit.device)
    for precision in (None, *precisions(visit.device)):
        name = str(precision or "float32")
        run = detected(on_device, precision, name)
        both = expected.tokens.join(run.tokens, on="token_id", suffix="_here", nulls_equal=True)
        equal = both["verdict"].eq_missing(both["verdict_here"])
        largest = float(np.nanmax(np.abs(both["lift"].to_numpy() - both["lift_here"].to_numpy())))
        told = f"{equal.sum()} of {len(tokens)} ({len(expected.sticky)} sticky)"
        told += f"; lifts differ by at most {largest:.1e}"
        visit.check(
            f"verdicts of {len(tokens)} tokens, {len(planted)} of them planted, screened in {name}",
            "those of float32 on the CPU",
            told,
            len(both) == len(tokens) and equal.all(),
            differing=both.filter(~equal).select("token_id", "verdict", "verdict_here").to_dicts(),
        )
    return True


def timed_detection(visit: Visit, model: str, title: str, goal: float | None) -> bool:
    """Time the command as a user runs it: imports, loading, every token, and the report."""
    with tempfile.TemporaryDirectory(dir=visit.work) as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "stickytoken", "detect", model, "--quiet"]
        command += ["--device", visit.device, "--out", str(out)]
        if visit.sample is not None:
            command += ["--sample", str(visit.sample)]
        status, _, seconds, peak = watched(command)
        if status != 0:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}")
        run = open_run(out)
    _, _, importing, _ = watched([sys.executable, "-c", "import sentence_transformers"], memory=False)
    result = run.result
    told = f"{seconds:.1f} s, {result.seconds:.1f} s of them for {result.sequences:,} texts"
    told += f" and {importing:.1f} s to import sentence-transformers; {gigabytes(peak)} of main memory"
    bar = "none" if goal is None else f"under {goal} s"
    passed = goal is None or seconds < goal
    detail = {"seconds": seconds, "texts": result.sequences, "text_seconds": result.seconds}
    detail |= {"import_seconds": importing, "bytes": peak}
    visit.check(
        f"detect {title}, {run.record.tokens:,} tokens", bar, told, passed, **detail, sticky=len(run.sticky)
    )
    return True


def detect(visit: Visit) -> bool:
    """The packaged model, whole."""
    return timed_detection(visit, visit.model, Path(visit.model).name, DETECT_GOAL)


def mpnet(visit: Visit) -> bool:
    """all-mpnet-base-v2, whole, if its folder is there."""
    if not visit.mpnet.is_dir():
        print(f"mpnet: left out, there is no folder {visit.mpnet}")
        return False
    return timed_detection(visit, str(visit.mpnet), "all-mpnet-base-v2", None)


def throughput(visit: Visit) -> bool:
    """Texts of std scoring a second: one shard by the library, one and eight by the engine."""
    plain = plain_model(visit.model, visit.device)
    encoder = load_encoder(plain)
    available = len(categorize(encoder.tokenizer).available)
    many_tokens = min(MANY_TOKENS, available - 2)  # `prepared` warms up with two more
    stage, tokens, _ = prepared(encoder, many_tokens)
    one_shard = Shard(0, tuple(tokens[:SHARD_TOKENS]))
    eight_shards = Shard(0, tuple(tokens))
    texts = texts_of(stage, one_shard.tokens)
    ids = encoder.content_ids(texts)
    forget_memory(visit.device)
    counts = {"engine": len(texts), "engine, eight shards": len(tokens) * stage.probes_per_token}
    ways: dict[str, Callable[[], object]] = {
        "engine": partial(compute_shard, stage, one_shard, encoder),
        "engine, eight shards": partial(compute_shard, stage, eight_shards, encoder),
        "engine, token ids": partial(encoder.encode_ids, ids),
    }
    for precision in precisions(visit.device):
        ways[f"engine, token ids, {precision}"] = partial(encoder.at(precision).encode_ids, ids)
    for batch_size, way in library(plain, texts, *BATCH_SIZES).items():
        ways[f"encode, batches of {batch_size}"] = way
    spent = by_turns(ways, 2, warm=True)
    rates = {name: counts.get(name, len(texts)) / min(seconds) for name, seconds in spent.items()}
    theirs = max(rate for name, rate in rates.items() if name.startswith("encode"))
    for name, rate in rates.items():
        told = f"{rate:,.0f} texts a second, {rate / theirs:.1f} times encode"
        visit.check(f"throughput: {name}", "none", told, seconds=spent[name])
    peak = gpu_memory(visit.device)
    visit.check("throughput: memory of the card", "none", gigabytes(peak), bytes=peak)
    return True


class BudgetSpentError(Exception):
    """The time of the visit is over; the run continues from its folder."""


def std(visit: Visit) -> bool:
    """The paper's method, whole, or as far as the time allows with an estimate of the whole."""
    latest: dict[str, Progress] = {}
    first_text = started = time.perf_counter()

    def watch(progress: Progress) -> None:
        nonlocal first_text
        if not progress.sequences and progress.stage != "mean similarity":
            first_text = time.perf_counter()
        latest[progress.stage] = progress
        if visit.seconds_left < 0:
            raise BudgetSpentError

    forget_memory(visit.device)
    encoder = load_encoder(visit.model, device=visit.device)
    try:
        run = stickytoken.detect(
            encoder, settings=STD, sample=visit.sample, out=visit.work / "std", progress=watch
        )
    except BudgetSpentError:
        run = None
    ended = time.perf_counter()
    peak = gpu_memory(visit.device)
    encoded = sum(progress.sequences for progress in latest.values())
    detail = {"seconds": ended - started, "texts": encoded, "bytes": peak}
    title, bar = "std, whole vocabulary", f"under {STD_GOAL} s"
    if run is not None:
        result = run.result
        whole = max(ended - started, result.seconds)  # the latter counts earlier processes too
        told = f"{whole:.0f} s, {result.seconds:.0f} s of them for {result.sequences:,} texts"
        told += f"; {gigabytes(peak)} of the card"
        visit.check(title, bar, told, whole < STD_GOAL, **detail, sticky=len(run.sticky))
        return True
    if not encoded:
        visit.check(f"{title}, unfinished", bar, "no text was encoded in the time that was left", False)
        return False
    # What a run without bounds would take at the pace of the texts so far: the most that it can take.
    tokens = visit.sample or len(stickytoken.analyze_vocabulary(encoder).available)
    per_pair = len(Placement) * STD.copies
    scoring = tokens * (STD.scoring_pairs * per_pair + 1)
    validation = round(tokens * STD.candidate_share) * STD.validation_pairs * per_pair
    pace = encoded / (ended - first_text)
    whole = (first_text - started) + (scoring + validation) / pace
    told = f"at most {whole:.0f} s, judged by {encoded:,} texts, {pace:,.0f} a second"
    told += f"; {gigabytes(peak)} of the card"
    visit.check(f"{title}, unfinished", bar, told, whole < STD_GOAL, **detail)
    return False


STEPS: dict[str, Callable[[Visit], bool]] = {
    "correctness": correctness,
    "detect": detect,
    "throughput": throughput,
    "mpnet": mpnet,
    "std": std,
}


def main(
    device: str = "cuda",
    steps: str = ",".join(STEPS),
    seconds: float = 600,
    model: str = MINILM,
    mpnet: Path = CACHE / "all-mpnet-base-v2",
    rows: Path = PLANTED,
    correctness_tokens: int = 300,
    sample: int | None = None,
    work: Path = Path("runs/gpu"),
) -> None:
    """Run the steps, in the order that --steps names them.

    No step begins after --seconds, and std stops there. --sample takes few tokens instead of whole
    vocabularies.
    """
    asked = steps.split(",")
    if unknown := set(asked) - set(STEPS):
        refuse(f"there is no step {', '.join(sorted(unknown))}: use {', '.join(STEPS)}")
    work.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    visit = Visit(model, device, mpnet, rows, correctness_tokens, sample, work, ends)
    visit.recall()
    for name in asked:
        if name in visit.finished:
            print(f"{name}: done before on {visit.card}")
            continue
        if visit.seconds_left <= 0:
            print(f"{name}: left out, the time is over")
            continue
        visit.step = name
        try:
            whole = STEPS[name](visit)
        except Exception as error:  # noqa: BLE001 - a lent machine must not be wasted on the first fault
            traceback.print_exc()
            visit.check(name, "no error", f"{type(error).__name__}: {error}", False)
            continue
        if whole:
            visit.finished.append(name)
            visit.save()


if __name__ == "__main__":
    commands(__doc__, main)
