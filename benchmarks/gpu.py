"""Measures verdicts at lower precision, times of complete runs, texts per second and memory on a GPU.

The script needs one GPU with CUDA, and takes at most ten minutes by default. Run it with
`python benchmarks/gpu.py`. The steps `correctness` (for its planted tokens) and `mpnet` also need files
that are not part of the project: an .npz with planted rows, and the folder of all-mpnet-base-v2.

The script writes the results of a step to results/gpu.json as soon as the step ends. If the script is run
again with the same card, model and version of stickytoken, it skips the finished steps. If a step fails, the
script records the error and goes on with the next step.
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
from stickytoken import ProfileSettings, load_encoder
from stickytoken.detection import Run, open_run
from stickytoken.encoders import IdEncoder
from stickytoken.insertion import Placement
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Progress, Shard
from stickytoken.measurement.resume import hardware
from stickytoken.methods.std import StdSettings
from stickytoken.vocabulary import categorize
from throughput import compute_shard, library, prepared, texts_of

# Maximum seconds that a user should wait, including imports, loading the model and the report.
DETECT_GOAL = 30
STD_GOAL = 300
# Numbers of tokens in the throughput step. Each token has 121 texts, so that 68 tokens fill one shard of a
# run, and 544 tokens fill eight shards.
SHARD_TOKENS = 68
MANY_TOKENS = 544
BATCH_SIZES = (32, 128, 512)
PROFILE = ProfileSettings()
STD = StdSettings()
# The stage of a std run that comes before the scoring of tokens.
MEAN_SIMILARITY_STAGE = "mean similarity"


@dataclass
class Visit:
    """One call of the script: its options, and the results so far.

    Attributes:
        model: name or folder of the model.
        device: the device to measure, such as ``cuda``.
        mpnet_folder: folder of all-mpnet-base-v2. If it is missing, the step ``mpnet`` is left out.
        planted_rows: .npz with planted rows for the packaged model. If it is missing, no tokens are planted.
        correctness_tokens: number of ordinary tokens in the step ``correctness``.
        sample: number of tokens in complete runs; None for all available tokens.
        work_folder: folder for run folders. A run that was interrupted continues from its folder.
        deadline: time at which the visit ends, on the clock of `time.monotonic`.
        finished_steps: names of the finished steps.
        checks: the recorded results, in order.
        step: name of the current step.
    """

    model: str
    device: str
    mpnet_folder: Path
    planted_rows: Path
    correctness_tokens: int
    sample: int | None
    work_folder: Path
    deadline: float
    finished_steps: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    step: str = ""

    @property
    def card(self) -> str:
        """Name of the GPU, or of the machine if the device has no name."""
        description = hardware(self.device)
        return description.get("device_name", description["machine"])

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def check(self, name: str, bar: str, ours: str, passed: object = True, /, **detail: Any) -> None:
        """Record a result of the current step, print it, and write all results to the file.

        Args:
            name: what was measured.
            bar: the required value, in words; "none" if no value is required.
            ours: the measured value, in words.
            passed: whether the measured value meets the bar.
            **detail: further numbers for the file.
        """
        print(f"{self.step}: {name}: {ours}", flush=True)
        check = {
            "step": self.step,
            "name": name,
            "bar": bar,
            "ours": ours,
            "passed": bool(passed),
            "detail": detail,
        }
        self.checks.append(check)
        self.save()

    def save(self) -> None:
        """Write all results to results/gpu.json."""
        write_json(
            "gpu",
            self.device,
            card=self.card,
            model=Path(self.model).name,
            finished=self.finished_steps,
            checks=self.checks,
        )

    def recall(self) -> None:
        """Load the steps that an earlier visit finished with the same card, model and version."""
        path = bench.RESULTS / "gpu.json"
        if not path.is_file():
            return
        document = json.loads(path.read_text(encoding="utf-8"))
        identity_of_document = (
            document["card"],
            document["model"],
            document["versions"]["stickytoken"],
        )
        identity_of_visit = (self.card, Path(self.model).name, stickytoken.__version__)
        if identity_of_document == identity_of_visit:
            self.finished_steps = document["finished"]
            self.checks = [check for check in document["checks"] if check["step"] in self.finished_steps]


def precisions(device: str) -> list[Precision]:
    """Return the precisions below float32 that are measured on a device."""
    if device == "cpu":
        return [Precision.BFLOAT16]
    if device.startswith("cuda"):
        return [Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16]
    return [Precision.BFLOAT16, Precision.FLOAT16]


def gpu_memory(device: str) -> int | None:
    """Return the peak number of bytes that torch has reserved on the GPU since the last `forget_memory`.

    Returns:
        The number of bytes; None if the device is not a CUDA device.
    """
    import torch

    return torch.cuda.max_memory_reserved(device) if device.startswith("cuda") else None


def forget_memory(device: str) -> None:
    """Free the unused memory of the GPU and reset its peak, so that `gpu_memory` begins anew."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def gigabytes(byte_count: int | None) -> str:
    """Return a number of bytes in words, in GB; "unknown" for None."""
    return "unknown" if byte_count is None else f"{byte_count / 1e9:.1f} GB"


def correctness(visit: Visit) -> bool:
    """Compare the verdicts on the GPU, in each precision of the screen, with those in float32 on the CPU.

    The tokens are the planted ones, if there are any, and a random sample of ordinary ones.

    Returns:
        True, since the step is always finished.
    """
    has_planted_rows = visit.model == MINILM and visit.planted_rows.is_file()

    def load(device: str) -> IdEncoder:
        """Load the model, with the planted rows if there are any."""
        if has_planted_rows:
            return planted_encoder(visit.planted_rows, 1.0, device)
        return load_encoder(visit.model, device=device)

    on_cpu = load("cpu")
    planted_ids = np.load(visit.planted_rows)["token_ids"].tolist() if has_planted_rows else []
    available = categorize(on_cpu.tokenizer).available
    ordinary_ids = [token.id for token in available if token.id not in planted_ids]
    sample_size = min(visit.correctness_tokens, len(ordinary_ids))
    sampled_ids = np.random.default_rng(0).choice(ordinary_ids, size=sample_size, replace=False).tolist()
    token_ids = planted_ids + sampled_ids

    def run_detection(encoder: IdEncoder, precision: Precision | None, folder: str) -> Run:
        """Judge the tokens with a screen in this precision; None is float32."""
        settings = replace(PROFILE, screen_precision=precision)
        out = visit.work_folder / "correctness" / folder
        return stickytoken.detect(encoder, settings=settings, tokens=token_ids, out=out)

    expected = run_detection(on_cpu, None, "cpu")
    on_device = load(visit.device)
    for precision in (None, *precisions(visit.device)):
        precision_name = str(precision or "float32")
        run = run_detection(on_device, precision, precision_name)
        name = f"verdicts of {len(token_ids)} tokens, {len(planted_ids)} of them planted"
        check_verdicts(visit, f"{name}, screened in {precision_name}", expected, run, len(expected.tokens))
    return True


def check_verdicts(visit: Visit, name: str, expected: Run, run: Run, token_count: int) -> None:
    """Record how many verdicts of a run are equal to the expected ones, and how far erased shares differ.

    Args:
        visit: the visit that records the result.
        name: name of the check.
        expected: the run in float32 on the CPU.
        run: the run to compare.
        token_count: number of tokens that both runs should have judged.
    """
    joined = expected.tokens.join(run.tokens, on="token_id", suffix="_here", nulls_equal=True)
    is_equal = joined["verdict"].eq_missing(joined["verdict_here"])
    erased_differences = np.abs(joined["erased"].to_numpy() - joined["erased_here"].to_numpy())
    largest_difference = float(np.nanmax(erased_differences))
    ours = f"{is_equal.sum()} of {token_count} ({len(expected.sticky)} sticky)"
    ours += f"; erased shares differ by at most {largest_difference:.1e}"
    differing_rows = joined.filter(~is_equal).select("token_id", "verdict", "verdict_here")
    visit.check(
        name,
        "those of float32 on the CPU",
        ours,
        len(joined) == token_count and is_equal.all(),
        differing=differing_rows.to_dicts(),
    )


def timed_detection(visit: Visit, model: str, title: str, goal: float | None) -> bool:
    """Time the command ``detect`` as a user runs it, with imports, loading, all tokens and the report.

    Args:
        visit: the visit that records the result.
        model: name or folder of the model.
        title: name of the model in the results.
        goal: maximum number of seconds; None if there is no goal.

    Returns:
        True, since the step is always finished.

    Raises:
        RuntimeError: The command failed.
    """
    with tempfile.TemporaryDirectory(dir=visit.work_folder) as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "stickytoken", "detect", model, "--quiet"]
        command += ["--device", visit.device, "--out", str(out)]
        if visit.sample is not None:
            command += ["--sample", str(visit.sample)]
        status, _, seconds, peak_bytes = watched(command)
        if status != 0:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}")
        run = open_run(out)
    # The import is most of the time on a GPU, so it is also timed alone.
    import_command = [sys.executable, "-c", "import sentence_transformers"]
    _, _, import_seconds, _ = watched(import_command, memory=False)
    result = run.result
    ours = f"{seconds:.1f} s, {result.seconds:.1f} s of them for {result.sequences:,} texts"
    ours += f" and {import_seconds:.1f} s to import sentence-transformers"
    ours += f"; {gigabytes(peak_bytes)} of main memory"
    visit.check(
        f"detect {title}, {run.record.tokens:,} tokens",
        "none" if goal is None else f"under {goal} s",
        ours,
        goal is None or seconds < goal,
        seconds=seconds,
        texts=result.sequences,
        text_seconds=result.seconds,
        import_seconds=import_seconds,
        bytes=peak_bytes,
        sticky=len(run.sticky),
    )
    return True


def detect(visit: Visit) -> bool:
    """Time ``detect`` on the visit's model. Return True, since the step is always finished."""
    return timed_detection(visit, visit.model, Path(visit.model).name, DETECT_GOAL)


def mpnet(visit: Visit) -> bool:
    """Time ``detect`` on all-mpnet-base-v2. Return whether the model's folder exists."""
    if not visit.mpnet_folder.is_dir():
        print(f"mpnet: left out, there is no folder {visit.mpnet_folder}")
        return False
    return timed_detection(visit, str(visit.mpnet_folder), "all-mpnet-base-v2", None)


def throughput(visit: Visit) -> bool:
    """Measure how many texts per second the engine and SentenceTransformer.encode encode.

    The texts are those that the method std encodes to score tokens. All ways encode the texts of one shard;
    one way of the engine also encodes those of eight shards.

    Returns:
        True, since the step is always finished.
    """
    plain = plain_model(visit.model, visit.device)
    encoder = load_encoder(plain)
    available_count = len(categorize(encoder.tokenizer).available)
    many_tokens = min(MANY_TOKENS, available_count - 2)  # `prepared` warms up with two more
    stage, tokens, _ = prepared(encoder, many_tokens)
    one_shard = Shard(0, tuple(tokens[:SHARD_TOKENS]))
    eight_shards = Shard(0, tuple(tokens))
    texts = texts_of(stage, one_shard.items)
    ids = encoder.content_ids(texts)
    forget_memory(visit.device)
    ways: dict[str, Callable[[], object]] = {
        "engine": partial(compute_shard, stage, one_shard, encoder),
        "engine, eight shards": partial(compute_shard, stage, eight_shards, encoder),
        "engine, token ids": partial(encoder.encode_ids, ids),
    }
    for precision in precisions(visit.device):
        ways[f"engine, token ids, {precision}"] = partial(encoder.at(precision).encode_ids, ids)
    for batch_size, encode in library(plain, texts, *BATCH_SIZES).items():
        ways[f"encode, batches of {batch_size}"] = encode
    text_counts = dict.fromkeys(ways, len(texts))
    text_counts["engine, eight shards"] = len(tokens) * stage.probes_per_token
    seconds_of_ways = by_turns(ways, 2, warm=True)
    rates = {way: text_counts[way] / min(seconds) for way, seconds in seconds_of_ways.items()}
    # The engine is compared with the library's best batch size.
    library_rate = max(rate for way, rate in rates.items() if way.startswith("encode"))
    for way, rate in rates.items():
        ours = f"{rate:,.0f} texts a second, {rate / library_rate:.1f} times encode"
        visit.check(f"throughput: {way}", "none", ours, seconds=seconds_of_ways[way])
    peak_bytes = gpu_memory(visit.device)
    visit.check("throughput: memory of the card", "none", gigabytes(peak_bytes), bytes=peak_bytes)
    return True


class BudgetSpentError(Exception):
    """The visit has reached its deadline. The std run can be continued from its folder."""


@dataclass
class StdWatch:
    """The progress callback of a std run, which notes times and texts, and stops the run at the deadline.

    Attributes:
        visit: the visit with the deadline.
        started: time at which the run was started, on the clock of `time.perf_counter`.
        scoring_started: time at which the run began to encode texts that score tokens.
        texts_of_stages: number of texts that were encoded in this process, keyed by stage.
    """

    visit: Visit
    started: float
    scoring_started: float
    texts_of_stages: dict[str, int] = field(default_factory=dict)

    def __call__(self, progress: Progress) -> None:
        """Note the progress of the run. Raise a BudgetSpentError after the deadline."""
        if not progress.sequences and progress.stage != MEAN_SIMILARITY_STAGE:
            self.scoring_started = time.perf_counter()
        self.texts_of_stages[progress.stage] = progress.sequences
        if self.visit.seconds_left < 0:
            raise BudgetSpentError

    @property
    def texts(self) -> int:
        """Number of texts that were encoded in this process, in all stages."""
        return sum(self.texts_of_stages.values())

    @property
    def scoring_texts(self) -> int:
        """Number of texts that were encoded in this process since `scoring_started`."""
        return self.texts - self.texts_of_stages.get(MEAN_SIMILARITY_STAGE, 0)


def std(visit: Visit) -> bool:
    """Time the paper's method on the visit's model.

    If the deadline comes before the run ends, the time of the complete run is estimated.

    Returns:
        Whether the run is finished.
    """
    started = time.perf_counter()
    watch = StdWatch(visit, started, scoring_started=started)
    forget_memory(visit.device)
    encoder = load_encoder(visit.model, device=visit.device)
    out = visit.work_folder / "std"
    try:
        run = stickytoken.detect(encoder, settings=STD, sample=visit.sample, out=out, progress=watch)
    except BudgetSpentError:
        run = None
    ended = time.perf_counter()
    peak_bytes = gpu_memory(visit.device)
    title = "std, whole vocabulary"
    bar = f"under {STD_GOAL} s"
    detail = {"seconds": ended - started, "texts": watch.texts, "bytes": peak_bytes}
    if run is not None:
        result = run.result
        # The result also counts the seconds of earlier processes that worked on this run.
        total_seconds = max(ended - started, result.seconds)
        ours = f"{total_seconds:.0f} s, {result.seconds:.0f} s of them for {result.sequences:,} texts"
        ours += f"; {gigabytes(peak_bytes)} of the card"
        visit.check(title, bar, ours, total_seconds < STD_GOAL, **detail, sticky=len(run.sticky))
        return True
    if not watch.scoring_texts:
        ours = "no text was encoded in the time that was left"
        visit.check(f"{title}, unfinished", bar, ours, False)
        return False
    texts_per_second = watch.scoring_texts / (ended - watch.scoring_started)
    seconds_before_scoring = watch.scoring_started - started
    total_seconds = seconds_before_scoring + most_std_texts(visit, encoder) / texts_per_second
    ours = f"at most {total_seconds:.0f} s, judged by {watch.scoring_texts:,} texts"
    ours += f", {texts_per_second:,.0f} a second; {gigabytes(peak_bytes)} of the card"
    visit.check(f"{title}, unfinished", bar, ours, total_seconds < STD_GOAL, **detail)
    return False


def most_std_texts(visit: Visit, encoder: IdEncoder) -> int:
    """Return the number of texts of a std run that uses no bounds on scores, which no run exceeds."""
    tokens = visit.sample or len(stickytoken.analyze_vocabulary(encoder).available)
    texts_per_pair = len(Placement) * STD.copies
    scoring_texts = tokens * (STD.scoring_pairs * texts_per_pair + 1)
    candidates = round(tokens * STD.candidate_share)
    validation_texts = candidates * STD.validation_pairs * texts_per_pair
    return scoring_texts + validation_texts


# Each step returns whether it is finished. A step that is not finished is repeated by the next visit.
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
    """Measure stickytoken on a GPU: verdicts, times of complete runs, texts per second, and memory.

    The steps run in the order in which --steps names them. After --seconds, no step begins, and the step std
    stops. To continue, run the same command again: it skips the steps that are finished on this card.

    --model is the model of all steps except mpnet, which uses the folder --mpnet. --rows is an .npz with
    planted rows for all-MiniLM-L6-v2. --correctness-tokens is the number of ordinary tokens whose verdicts
    are compared. With --sample, complete runs take so many tokens instead of the whole vocabulary. --work is
    a folder for runs.
    """
    step_names = steps.split(",")
    unknown_names = set(step_names) - set(STEPS)
    if unknown_names:
        refuse(f"there is no step {', '.join(sorted(unknown_names))}: use {', '.join(STEPS)}")
    work.mkdir(parents=True, exist_ok=True)
    visit = Visit(
        model=model,
        device=device,
        mpnet_folder=mpnet,
        planted_rows=rows,
        correctness_tokens=correctness_tokens,
        sample=sample,
        work_folder=work,
        deadline=time.monotonic() + seconds,
    )
    visit.recall()
    for step_name in step_names:
        if step_name in visit.finished_steps:
            print(f"{step_name}: done before on {visit.card}")
            continue
        if visit.seconds_left <= 0:
            print(f"{step_name}: left out, the time is over")
            continue
        visit.step = step_name
        try:
            is_finished = STEPS[step_name](visit)
        except Exception as error:  # noqa: BLE001 - a lent machine must not be wasted on the first fault
            traceback.print_exc()
            visit.check(step_name, "no error", f"{type(error).__name__}: {error}", False)
            continue
        if is_finished:
            visit.finished_steps.append(step_name)
            visit.save()


if __name__ == "__main__":
    commands(__doc__, main)
