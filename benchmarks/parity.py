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
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken
from bench import MINILM, MINILM_U, PUBLISHED, Results, commands, detected, published_table, refuse, watched
from stickytoken.cli.console import progress_bar
from stickytoken.data import choose_corpus
from stickytoken.detection import probe
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder, load_tokenizer, mean_similarity
from stickytoken.measurement import ResultFolder, ShardCost
from stickytoken.measurement.engine import LocalEngine
from stickytoken.methods.base import SHARD_PROBES, FolderRunner, Job, MemoryRunner
from stickytoken.methods.std import (
    CountedRun,
    Scores,
    StdEvidence,
    StdResultRecord,
    StdSettings,
    candidate_threshold,
)
from stickytoken.methods.std.placement import TIE, validation_order
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.scoring import score_tokens, scoring_pairs
from stickytoken.methods.std.validation import published_paths, validation_stage
from stickytoken.unit_vectors import unit_vectors

KILLS = 10
# Texts of a run that encodes every text: of each token, alone and in 5 pairs x 3 placements x 8 copies; of
# each candidate, in 250 pairs x 3 placements x 8 copies.
SCORING_TEXTS, VALIDATION_TEXTS = 121, 6000
SAME_RATE = 1e-6
# Shards that fill an accelerator. It changes no number beyond rounding.
ACCELERATOR_SHARD = 65_536


def minilm(
    published: Path = PUBLISHED,
    device: str | None = None,
    replay: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """A whole run of std on the published pairs against the published candidates, rates and sticky tokens.

    On two cores it takes hours; --out keeps the run, and the same command continues it. --replay N validates
    N published candidates, drawn at random with --seed, by the code path of a whole run: N times 4,896 texts.
    """
    encoder = load_encoder(MINILM, device=device)
    rows = published_table(published, "minilm_candidates")
    pairs = published / "minilm_pairs.csv"
    if replay is not None:
        results = Results("parity-replay", encoder.device, model=MINILM, seed=seed)
        drawn = np.random.default_rng(seed).choice(len(rows), min(replay, len(rows)), replace=False)
        chosen = rows[np.sort(drawn)]
        compare_rates(results, chosen, replayed(encoder, rows, chosen["token_id"].to_list(), pairs))
        results.finish()
        return
    results = Results("parity", encoder.device, model=MINILM)
    vocabularies(results, published)
    check_u(results, encoder, MINILM_U)
    with tempfile.TemporaryDirectory() as work:
        options: dict[str, Any] = {} if encoder.device == "cpu" else {"shard_probes": ACCELERATOR_SHARD}
        folder = out or Path(work) / "run"
        run = detected(encoder, method="std", pairs=pairs, out=folder, evidence=False, **options)
        compare_run(results, run, rows)
    results.finish()


def compare_run(results: Results, run: stickytoken.Run, rows: pl.DataFrame) -> None:
    """Compare candidates, rates, sticky tokens and the number of texts of a whole run."""
    ours = run.tokens.filter(pl.col("validation_rate").is_not_null())
    result = run.result_of(StdResultRecord)
    threshold = result.score_threshold
    joined = ours.join(rows.rename({"sticky_score": "published_score"}), on="token_id", how="full")
    unmatched = joined.filter(pl.col("token_id").is_null() | pl.col("token_id_right").is_null())
    score = pl.coalesce("sticky_score", "published_score")
    different = unmatched.filter((score - threshold).abs() > TIE)
    told = f"{len(ours)} candidates, {len(different)} differ"
    names = different.select(pl.coalesce("token", "token_right")).to_series().to_list()
    results.check("candidates", f"the {len(rows)} published ones", told, different.is_empty(), differ=names)
    differences = (joined["sticky_score"] - joined["published_score"]).abs().drop_nulls().to_numpy()
    largest = float(differences.max())
    told = f"largest difference {largest:.1e}"
    results.check("scores of the candidates", "within 1e-4", told, largest <= 1e-4)
    by_metric = {"cosine": "validation_rate", "euclidean": "validation_rate_euclidean"}
    shared = rows.select("token_id").join(ours, on="token_id", how="inner", maintain_order="left")
    published = rows.join(shared.select("token_id"), on="token_id", how="semi")
    found = {metric: shared[column].to_numpy() for metric, column in by_metric.items()}
    compare_rates(results, published, found)
    sticky = set(run.sticky["token_id"])
    theirs = set(rows.filter("sticky")["token_id"])
    told = f"{len(sticky & theirs)} of them, {len(sticky - theirs)} others"
    results.check("sticky tokens", f"exactly the {len(theirs)} published ones", told, sticky == theirs)
    texts = result.sequences
    whole = run.available * SCORING_TEXTS + len(ours) * VALIDATION_TEXTS
    told = f"{texts:,} of {whole:,}: {texts / whole:.1%}"
    seconds = result.seconds
    results.check(
        "texts", "at most 55% of a run without bounds", told, texts <= 0.55 * whole, seconds=seconds
    )


def replayed(
    encoder: Encoder, rows: pl.DataFrame, token_ids: list[int], pairs: Path
) -> dict[str, NDArray[np.float64]]:
    """Validate some of the published candidates; the random stream is walked over all of them."""
    settings = StdSettings()
    vocabulary = analyze_vocabulary(encoder)
    by_id = {token.id: token for token in vocabulary.available}
    order = validation_order(dict(rows.select("token_id", "sticky_score").iter_rows()))
    with progress_bar() as progress:
        plan = make_plan(encoder, settings, choose_corpus(None, pairs), progress)
        candidates = [by_id[token_id] for token_id in order]
        paths = published_paths(encoder, settings, plan, vocabulary.available, candidates)
        stage = validation_stage(encoder, settings, plan, paths)
        runner = MemoryRunner(encoder, progress, shard_probes=1)
        validated = runner(stage, [by_id[token_id] for token_id in token_ids], truncate=True)
    return {metric: validated[f"rate_{metric}"].to_numpy() for metric in ("cosine", "euclidean")}


def compare_rates(results: Results, published: pl.DataFrame, ours: dict[str, NDArray[np.float64]]) -> None:
    """Compare validation rates; the table of candidates has 0.876 for [CLS], the table of results 0.973."""
    for metric, rates in ours.items():
        offs = np.abs(rates - published[f"validation_rate_{metric}"].to_numpy())
        title, told = f"{metric} rates of {len(rates)} candidates", f"largest difference {offs.max():.1e}"
        differ = published.filter(pl.Series(offs > SAME_RATE))["token"].to_list()
        results.check(title, f"each within {SAME_RATE:.0e}", told, not differ, differ=differ)


def bounds(
    device: str | None = None, tokens: int = 2000, turns: int = 2, published: Path = PUBLISHED
) -> None:
    """Seconds and texts to score a random sample of tokens by bounds, and whole, in turns."""
    encoder = load_encoder(MINILM, device=device)
    vocabulary = analyze_vocabulary(encoder)
    drawn = np.random.default_rng(0).choice(len(vocabulary.available), tokens, replace=False)
    chosen = [vocabulary.available[place] for place in sorted(drawn.tolist())]
    corpus = choose_corpus(None, published / "minilm_pairs.csv")
    costs: dict[Scores, list[ShardCost]] = {Scores.NEEDED: [], Scores.ALL: []}
    tables: dict[Scores, pl.DataFrame] = {}
    shard_probes = SHARD_PROBES if encoder.device == "cpu" else ACCELERATOR_SHARD
    for _ in range(turns):
        for scores, own in costs.items():
            settings = StdSettings(scores=scores)
            job = Job(encoder, settings, corpus, vocabulary, chosen, restricted=True, sampled=True)
            with tempfile.TemporaryDirectory() as work, progress_bar() as progress:
                plan = make_plan(encoder, settings, corpus, progress)
                engine = LocalEngine(encoder)
                runner = FolderRunner(engine, ResultFolder(Path(work)), progress, shard_probes)
                counted = CountedRun(runner, truncate=True)
                tables[scores] = score_tokens(job, scoring_pairs(encoder, settings, plan), counted)
                own.append(runner.cost)
    results = Results("parity-bounds", encoder.device, model=MINILM)
    seconds = {scores.value: [cost.seconds for cost in own] for scores, own in costs.items()}
    ratio = min(seconds["needed"]) / min(seconds["all"])
    told = f"{ratio:.2f} of the time without"
    results.check(
        f"time to score {tokens:,} tokens", "at most 0.5 of it", told, ratio <= 0.5, seconds=seconds
    )
    texts = {scores.value: own[0].sequences / tokens for scores, own in costs.items()}
    told = f"{texts['needed']:.1f} of {texts['all']:.0f} texts a token"
    results.check("texts", "counted", told, True, texts=texts)
    joined = tables[Scores.NEEDED].join(tables[Scores.ALL], on="token_id", suffix="_whole")
    share = StdSettings().candidate_share
    least = candidate_threshold(joined["score_cosine_whole"].to_numpy(), share)
    best = joined.filter(pl.col("score_cosine_whole") >= least)
    lost = best.filter(pl.col("score_cosine").is_null())
    violated = joined.filter(pl.col("score_at_most") < pl.col("score_cosine_whole") - 1e-4)
    told = f"{len(lost)} of {len(best)} candidates lost, {len(violated)} bounds violated"
    results.check("candidates", "none lost", told, lost.is_empty() and violated.is_empty())
    results.finish()


def resume() -> None:
    """Peak memory, and kill -9 at random moments of short runs, which then continue. On the CPU."""
    results = Results("parity-resume", model=MINILM)
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
    # With so many tokens, some are ruled out by bounds, in several rounds.
    options = ["--method", "std", "--sample", "1100"]
    options += ["--set", "validation-pairs=4", "--set", "scoring-pairs=1", "--set", "copies=4"]

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
    commands(__doc__, minilm, bounds, resume, model=of_model)
