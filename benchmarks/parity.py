"""Compare the paper's method, as implemented here, with its published numbers on all-MiniLM-L6-v2.

python benchmarks/parity.py                 # about 45 minutes on 2 CPU cores
python benchmarks/parity.py --full --device cuda   # every token, every candidate
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from checks import Check, show, write
from published import MINILM_SCORE_THRESHOLD, MINILM_U, PUBLISHED, table
from stickytoken.cli.output.progress import progress_bar
from stickytoken.detection import detect, probe
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder, load_tokenizer, mean_similarity
from stickytoken.methods.std.formulas import outlier_threshold
from stickytoken.methods.std.plan import StdEvidence, StdResultRecord
from stickytoken.methods.std.settings import StdSettings


def main() -> None:
    arguments = parse()
    checks: list[Check] = []
    seconds: dict[str, float] = {}

    def run(name: str, check: Callable[[], list[Check]]) -> None:
        if arguments.only and name not in arguments.only:
            return
        started = time.perf_counter()
        checks.extend(check())
        seconds[name] = round(time.perf_counter() - started, 1)
        # After every part, so that hours of work are not lost with the last one.
        write(checks, arguments.name, encoder.device, seconds=seconds, model=Path(arguments.model).name)

    encoder = load_encoder(arguments.model, device=arguments.device)
    folder = arguments.published
    run("vocabulary", lambda: [*minilm_vocabulary(arguments.model, folder), *other_vocabularies(folder)])
    run("mean similarity", lambda: [mean_similarity_check(encoder)])
    run("final rule", lambda: [final_rule(folder)])
    if arguments.full:
        run("full", lambda: full_run(encoder, folder, arguments.run))
    else:
        run("scores", lambda: scores(encoder, folder, arguments.scores))
        run("validation", lambda: [validation_rates(encoder, folder, arguments.candidates)])
    run("memory", lambda: [peak_memory(arguments.model)])
    run("kill", lambda: [kill_and_resume(arguments.model, arguments.kills)])
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="folder of the published tables")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--candidates", type=int, default=48, help="published candidates to validate")
    parser.add_argument("--scores", type=int, default=120, help="candidates, and other tokens, to score")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--full", action="store_true", help="score and validate everything")
    parser.add_argument("--run", type=Path, default=Path("runs/parity-full"), help="folder of the full run")
    parser.add_argument("--only", nargs="*", help="run only these parts")
    parser.add_argument("--name", default="parity", help="name of the result file")
    return parser.parse_args()


def minilm_vocabulary(model: str, folder: Path) -> list[Check]:
    vocabulary = analyze_vocabulary(load_tokenizer(model))
    published = table(folder, "minilm_categories")["category"].to_list()
    ours = [category.value for category in vocabulary.categories]
    different = sum(a != b for a, b in zip(ours, published, strict=True))
    available = len(vocabulary.available)
    return [
        Check("MiniLM: available tokens", "23,699", f"{available:,}", available == 23_699, {}),
        Check("MiniLM: categories that differ", "0 of 30,522", str(different), different == 0, {}),
    ]


def other_vocabularies(folder: Path) -> list[Check]:
    tokenizers = folder.parent / "tokenizers"
    t5 = analyze_vocabulary(load_tokenizer(tokenizers / "t5"))
    published = table(folder, "t5_categories")["category"].to_list()
    different = sum(a.value != b for a, b in zip(t5.categories, published, strict=True))
    roberta = len(analyze_vocabulary(load_tokenizer(tokenizers / "roberta-base")).available)
    available = len(t5.available)
    return [
        Check("T5: available tokens", "32,097", f"{available:,}", available == 32_097, {}),
        Check("T5: categories that differ", "at most 1", str(different), different <= 1, {}),
        Check("RoBERTa: available tokens", "49,894", f"{roberta:,}", roberta == 49_894, {}),
    ]


def mean_similarity_check(encoder: Encoder) -> Check:
    u = mean_similarity(encoder).value
    return Check(
        "mean similarity u", f"{MINILM_U:.5f} to 1e-4", f"{u:.6f}", abs(u - MINILM_U) <= 1e-4, {"u": u}
    )


def final_rule(folder: Path) -> Check:
    published = table(folder, "minilm_candidates")
    threshold = outlier_threshold(published["validation_rate_cosine"].to_list(), 0.7)
    ours = set(published.filter(pl.col("validation_rate_cosine") > threshold)["token_id"])
    theirs = set(published.filter(pl.col("sticky"))["token_id"])
    return Check(
        "final rule on the published rates",
        "exactly the 21 published tokens",
        f"{len(ours & theirs)} of them, {len(ours - theirs)} others",
        ours == theirs and len(theirs) == 21,
        {"threshold": threshold},
    )


def validation_rates(encoder: Encoder, folder: Path, count: int) -> Check:
    published = table(folder, "minilm_candidates")
    places = np.linspace(0, len(published) - 1, count).round().astype(int)
    chosen = published[places.tolist()]
    with progress_bar() as progress:
        evidence = probe(
            encoder,
            chosen["token_id"].to_list(),
            settings=StdSettings(),
            pairs=folder / "minilm_pairs.csv",
            progress=progress,
        )
    ours = np.array([each.validation_rate["cosine"] for each in evidence if isinstance(each, StdEvidence)])
    return compare_rates(ours, chosen["validation_rate_cosine"].to_numpy())


def compare_rates(ours: np.ndarray[Any, Any], published: np.ndarray[Any, Any]) -> Check:
    worst = float(np.abs(ours - published).max())
    pearson = float(np.corrcoef(ours, published)[0, 1])
    return Check(
        f"validation rates of {len(ours)} candidates",
        "each within 0.02, Pearson >= 0.97",
        f"largest difference {worst:.4f}, Pearson {pearson:.4f}",
        worst <= 0.02 and pearson >= 0.97,
        {
            "largest": worst,
            "median": float(np.median(np.abs(ours - published))),
            "mean_signed": float((ours - published).mean()),
            "pearson": pearson,
        },
    )


def scores(encoder: Encoder, folder: Path, count: int) -> list[Check]:
    published = table(folder, "minilm_candidates")
    places = np.linspace(0, len(published) - 1, count).round().astype(int)
    candidates = published[places.tolist()]["token_id"].to_list()
    known = set(published["token_id"])
    rest = [token.id for token in analyze_vocabulary(encoder).available if token.id not in known]
    others = np.random.default_rng(0).choice(rest, size=count, replace=False).tolist()
    with tempfile.TemporaryDirectory() as work, progress_bar() as progress:
        run = detect(
            encoder,
            pairs=folder / "minilm_pairs.csv",
            tokens=[*candidates, *others],
            settings=StdSettings(candidate_share=1 / (2 * count), validation_pairs=2),
            out=Path(work) / "run",
            progress=progress,
        )
        return compare_scores(run.tokens, published, set(others))


def compare_scores(tokens: pl.DataFrame, published: pl.DataFrame, others: set[int]) -> list[Check]:
    joined = published.select("token_id", theirs="sticky_score").join(tokens, on="token_id")
    difference = (joined["sticky_score"] - joined["theirs"]).abs().to_numpy()
    above = tokens.filter(
        pl.col("token_id").is_in(sorted(others)), pl.col("sticky_score") >= MINILM_SCORE_THRESHOLD
    )
    return [
        Check(
            f"scores of {len(joined)} candidates",
            "median difference <= 1.0",
            f"median {np.median(difference):.7f}, largest {difference.max():.7f}",
            bool(np.median(difference) <= 1.0),
            {"median": float(np.median(difference)), "largest": float(difference.max())},
        ),
        Check(
            f"scores of {len(others)} other tokens",
            "at most 2 % above the published threshold",
            f"{len(above)} above {MINILM_SCORE_THRESHOLD:.4f}",
            len(above) <= 0.02 * len(others),
            {"above": above["token_id"].to_list()},
        ),
    ]


def full_run(encoder: Encoder, folder: Path, out: Path) -> list[Check]:
    """The whole vocabulary: the published shortlist, its rates, the published sticky tokens."""
    published = table(folder, "minilm_candidates")
    with progress_bar() as progress:
        run = detect(encoder, method="std", pairs=folder / "minilm_pairs.csv", out=out, progress=progress)
    tokens, result, sticky = run.tokens, run.result_of(StdResultRecord), set(run.sticky["token_id"])
    known = set(published["token_id"])
    shortlist = set(tokens.filter(pl.col("verdict").is_not_null())["token_id"])
    joined = published.join(tokens, on="token_id").filter(pl.col("validation_rate").is_not_null())
    theirs = set(published.filter(pl.col("sticky"))["token_id"])
    return [
        *compare_scores(tokens, published, set(tokens["token_id"]) - known),
        Check(
            "shortlist of the whole vocabulary",
            "the 474 published candidates",
            f"{len(shortlist & known)} of them, {len(shortlist - known)} others",
            len(shortlist & known) >= 0.98 * len(known),
            {"seconds": result.seconds, "sequences": result.sequences},
        ),
        compare_rates(joined["validation_rate"].to_numpy(), joined["validation_rate_cosine"].to_numpy()),
        Check(
            "sticky tokens of the whole vocabulary",
            "mostly the 21 published ones (random placement is redrawn)",
            f"{len(sticky & theirs)} of them, {len(sticky - theirs)} others",
            len(sticky & theirs) >= 11,
            {"ours": sorted(sticky), "threshold": result.rate_threshold},
        ),
    ]


def command(model: str, out: Path) -> list[str]:
    options = ["--sample", "30", "--validation-pairs", "8", "--candidate-share", "0.5", "--device", "cpu"]
    return [
        sys.executable,
        "-m",
        "stickytoken",
        "detect",
        model,
        "--method",
        "std",
        *options,
        "--out",
        str(out),
    ]


def kill_and_resume(model: str, kills: int) -> Check:
    """Kill -9 at random moments of a short run on the CPU, resume, compare bytes."""
    generator = random.Random(0)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as work:
        whole = Path(work) / "whole"
        started = time.perf_counter()
        subprocess.run(command(model, whole), check=True, **quiet)
        duration = time.perf_counter() - started
        expected = (whole / "tokens.parquet").read_bytes()
        equal, moments = 0, []
        for attempt in range(kills):
            folder = Path(work) / f"killed-{attempt}"
            process = subprocess.Popen(command(model, folder), **quiet)
            moments.append(round(generator.uniform(0.05, 0.95) * duration, 2))
            time.sleep(moments[-1])
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            subprocess.run(command(model, folder), check=True, **quiet)
            equal += (folder / "tokens.parquet").read_bytes() == expected
    return Check(
        f"kill -9 at {kills} random moments, then resume",
        "identical bytes each time",
        f"{equal} of {kills} identical",
        equal == kills,
        {"seconds_into_the_run": moments, "uninterrupted": round(duration, 1)},
    )


def peak_memory(model: str) -> Check:
    """Peak resident memory of a process that computes u and samples the pairs."""
    with tempfile.TemporaryDirectory() as work:
        options = ["--sample", "2", "--validation-pairs", "2", "--device", "cpu", "--out", f"{work}/run"]
        process = subprocess.Popen(
            [sys.executable, "-m", "stickytoken", "detect", model, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, exit_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(exit_status)
    scale = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes
    peak = usage.ru_maxrss * scale / 1e9
    passed = process.returncode == 0 and peak < 2
    return Check("peak memory: u and pairs", "under 2 GB", f"{peak:.2f} GB", passed, {"bytes": peak * 1e9})


if __name__ == "__main__":
    main()
