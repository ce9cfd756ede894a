"""Compare the paper's method, as implemented here, with its published numbers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench import MINILM, MINILM_U, PUBLISHED, Results, commands, detected, published_table, refuse, watched
from stickytoken.cli.console import progress_bar
from stickytoken.detection import probe
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder, load_tokenizer, mean_similarity
from stickytoken.methods.std import StdEvidence, StdSettings, outlier_threshold
from stickytoken.unit_vectors import unit_vectors

MINILM_SCORE_THRESHOLD, KILLS = 49.2041992, 10


def minilm(
    published: Path = PUBLISHED,
    device: str | None = None,
    candidates: int = 48,
    scores: int = 120,
) -> None:
    """Vocabularies, u, scores, validation rates and the final rule, with the published tables in --published.

    --candidates are validated, --scores of them and of other tokens are scored. 45 minutes on two cores.
    """
    encoder = load_encoder(MINILM, device=device)
    results = Results("parity", encoder.device, model=MINILM)
    vocabularies(results, published)
    check_u(results, encoder, MINILM_U)
    rows = published_table(published, "minilm_candidates")
    threshold = outlier_threshold(rows["validation_rate_cosine"].to_list(), 0.7)
    ours = set(rows.filter(pl.col("validation_rate_cosine") > threshold)["token_id"])
    theirs = set(rows.filter("sticky")["token_id"])
    title, bar = "final rule on the published rates", "exactly the 21 published tokens"
    told = f"{len(ours & theirs)} of them, {len(ours - theirs)} others"
    results.check(title, bar, told, ours == theirs and len(theirs) == 21, threshold=threshold)
    pairs = published / "minilm_pairs.csv"
    compare_scores(results, encoder, rows, pairs, scores)
    chosen = spread_over(rows, candidates)
    validated, published_rates = rates(encoder, chosen, pairs), chosen["validation_rate_cosine"].to_numpy()
    off, pearson = np.abs(validated - published_rates).max(), np.corrcoef(validated, published_rates)[0, 1]
    title, bar = f"validation rates of {len(validated)} candidates", "each within 0.02, Pearson >= 0.97"
    told = f"largest difference {off:.4f}, Pearson {pearson:.4f}"
    results.check(title, bar, told, off <= 0.02 and pearson >= 0.97)
    peak_memory(results)
    kill_and_resume(results)
    results.finish()


def vocabularies(results: Results, folder: Path) -> None:
    tokenizers = folder.parent / "tokenizers"
    for name, place, available, most in (
        ("MiniLM", MINILM, 23_699, 0),
        ("T5", tokenizers / "t5", 32_097, 1),
        ("RoBERTa", tokenizers / "roberta-base", 49_894, None),
    ):
        ours = analyze_vocabulary(load_tokenizer(place))
        count = len(ours.available)
        results.check(f"{name}: available tokens", f"{available:,}", f"{count:,}", count == available)
        if most is not None:
            theirs = published_table(folder, f"{name.lower()}_categories")["category"].to_list()
            different = sum(a.value != b for a, b in zip(ours.categories, theirs, strict=True))
            bar = f"at most {most}" if most else "0 of 30,522"
            results.check(f"{name}: categories that differ", bar, str(different), different <= most)


def check_u(results: Results, encoder: Encoder, theirs: float) -> None:
    u = mean_similarity(encoder).value
    results.check("mean similarity u", f"{theirs:.5f} to 1e-4", f"{u:.6f}", abs(u - theirs) <= 1e-4, u=u)


def spread_over(rows: pl.DataFrame, count: int) -> pl.DataFrame:
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return rows.filter(pl.int_range(pl.len()).is_in(places.tolist()))


def rates(encoder: Encoder, tokens: pl.DataFrame, pairs: Path) -> NDArray[np.float64]:
    with progress_bar() as progress:
        ids = tokens["token_id"].to_list()
        evidence = probe(encoder, ids, settings=StdSettings(), pairs=pairs, progress=progress)
    return np.array([each.validation_rate["cosine"] for each in evidence if isinstance(each, StdEvidence)])


def compare_scores(results: Results, encoder: Encoder, rows: pl.DataFrame, pairs: Path, count: int) -> None:
    """Scores of so many candidates, and of so many other tokens."""
    known = set(rows["token_id"])
    rest = [token.id for token in analyze_vocabulary(encoder).available if token.id not in known]
    others = np.random.default_rng(0).choice(rest, size=count, replace=False).tolist()
    with tempfile.TemporaryDirectory() as work:
        tokens = detected(
            encoder,
            pairs=pairs,
            tokens=[*spread_over(rows, count)["token_id"], *others],
            settings=StdSettings(candidate_share=1 / (2 * count), validation_pairs=2),
            out=Path(work) / "run",
        ).tokens
    joined = rows.select("token_id", theirs="sticky_score").join(tokens, on="token_id")
    off = (joined["sticky_score"] - joined["theirs"]).abs().to_numpy()
    median = float(np.median(off))
    title, told = f"scores of {len(joined)} candidates", f"median {median:.7f}, largest {off.max():.7f}"
    results.check(title, "median difference <= 1.0", told, median <= 1.0)
    above = tokens.filter(pl.col("token_id").is_in(others), pl.col("sticky_score") >= MINILM_SCORE_THRESHOLD)
    title, bar = f"scores of {len(others)} other tokens", "at most 2 % above the published threshold"
    told = f"{len(above)} above {MINILM_SCORE_THRESHOLD:.4f}"
    results.check(title, bar, told, len(above) <= 0.02 * len(others), above=above["token_id"].to_list())


def detection(out: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "stickytoken", "detect", MINILM, "--device", "cpu", "--quiet"]
    return [*command, *options, "--out", str(out)]


def peak_memory(results: Results) -> None:
    """Peak memory of a process that computes u and samples the pairs."""
    with tempfile.TemporaryDirectory() as work:
        options = ("--method", "std", "--sample", "2", "--set", "validation-pairs=2")
        status, _, _, peak = watched(detection(Path(work) / "run", *options))
    passed = status == 0 and peak < 2e9
    results.check("peak memory: u and pairs", "under 2 GB", f"{peak / 1e9:.2f} GB", passed, bytes=peak)


def kill_and_resume(results: Results) -> None:
    """Kill -9 at random moments of a short run on the CPU, resume, compare bytes."""
    generator = random.Random(0)
    options = ["--method", "std", "--sample", "30"]
    options += ["--set", "validation-pairs=8", "--set", "candidate-share=0.5"]

    def finished(out: Path) -> bytes:
        subprocess.run(detection(out, *options), check=True, stdout=subprocess.DEVNULL)
        return (out / "tokens.parquet").read_bytes()

    with tempfile.TemporaryDirectory() as work:
        started = time.perf_counter()
        expected = finished(Path(work) / "whole")
        duration = time.perf_counter() - started
        equal, moments = 0, []
        for attempt in range(KILLS):
            folder = Path(work) / f"killed-{attempt}"
            process = subprocess.Popen(detection(folder, *options), stdout=subprocess.DEVNULL)
            moments.append(round(generator.uniform(0.05, 0.95) * duration, 2))
            time.sleep(moments[-1])
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            equal += finished(folder) == expected
    title, bar = f"kill -9 at {KILLS} random moments, then resume", "identical bytes each time"
    ours, seconds = f"{equal} of {KILLS} identical", {"killed": moments, "uninterrupted": duration}
    results.check(title, bar, ours, equal == KILLS, seconds=seconds)


def of_model(model: Path, pairs: Path, published: Path = PUBLISHED, tokens: int = 12) -> None:
    """u, similarities of the published pairs, and rates of published sticky tokens, of another model.

    MODEL is a folder whose name is that of the model in the published tables. The similarities tell at once
    whether the model is the published one. 20 minutes.
    """
    encoder, name = load_encoder(model), model.name
    facts = published_table(published, "models").filter(model_name=name)
    if not len(facts):
        refuse(f"{name} is not in the published tables")
    rows = pl.read_csv(pairs)
    whole = [
        all(encoder.fits(ids) for ids in encoder.content_ids(pair))
        for pair in zip(rows["sentence1"], rows["sentence2"], strict=True)
    ]
    rows = rows.filter(pl.Series(whole))  # the published similarities of the others are of cut texts
    first, second = (unit_vectors(encoder.encode(rows[f"sentence{side}"].to_list())) for side in (1, 2))
    worst = float(np.abs((first * second).sum(axis=1) - rows["similarity"].to_numpy()).max())
    results = Results(f"parity-{name}", encoder.device, model=name)
    title = f"similarities of {len(rows):,} pairs"
    results.check(title, "within 1e-5", f"{worst:.1e}", worst <= 1e-5, worst=worst)
    check_u(results, encoder, facts["vocabulary_mean_cosine"].item())
    chosen = spread_over(published_table(published, "sticky_tokens").filter(model=name), tokens)
    ours = rates(encoder, chosen, pairs)
    largest = float(np.abs(ours - chosen["validation_rate"].to_numpy()).max())
    title, told = f"validation rates of {len(ours)} published tokens", f"largest difference {largest:.4f}"
    detail = {"tokens": chosen["token"].to_list(), "ours": ours.tolist()}
    results.check(title, "each within 0.02", told, largest <= 0.02, **detail)
    results.finish()


if __name__ == "__main__":
    commands(__doc__, minilm, model=of_model)
