"""Compare std, the implementation of the paper's method, with the numbers that the paper published.

`minilm` compares whole results for all-MiniLM-L6-v2, and `model` some numbers of another model of the paper.
`bounds` measures what std saves by encoding only the texts that it needs, and `resume` whether a run survives
being killed. `documents` measures the published sticky tokens by the default method. All commands except the
last two need the paper's published tables: pass their folder with --published.

Each command writes its checks to a file in benchmarks/results whose name begins with "parity". For example:
`python benchmarks/parity.py minilm --replay 3`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken
from bench import (
    MINILM,
    MINILM_U,
    PUBLISHED,
    Results,
    commands,
    detected,
    published_table,
    record_as,
    refuse,
    watched,
)
from stickytoken import analyze_vocabulary, load_encoder
from stickytoken.cli.console import progress_bar
from stickytoken.data import choose_corpus
from stickytoken.detection import probe
from stickytoken.encoders import Encoder, load_tokenizer
from stickytoken.intervals import Interval
from stickytoken.measurement.engine import LocalEngine, ignore_progress
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.measures import MEASURES, PUSH
from stickytoken.methods.profile import ProfileEvidence
from stickytoken.methods.profile.documents import DOCUMENT_COUNTS
from stickytoken.methods.runner import SHARD_PROBES, Runner
from stickytoken.methods.std import (
    Metric,
    Scores,
    StdEvidence,
    StdSettings,
    candidate_threshold,
)
from stickytoken.methods.std.counting import CountedRunner
from stickytoken.methods.std.mean_similarity import measure_mean_similarity
from stickytoken.methods.std.placement import TIE, validation_order
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.records import StdResultRecord
from stickytoken.methods.std.scoring import score_tokens, scoring_pairs
from stickytoken.methods.std.validation import published_paths, validation_stage
from stickytoken.published import published_tokens
from stickytoken.unit_vectors import unit_vectors

# Number of runs that are killed and continued.
KILLS = 10
# Number of texts per token in a run that encodes every text: the token alone, and 5 pairs x 3 placements x 8
# numbers of copies.
SCORING_TEXTS = 121
# Number of texts per candidate in such a run: 250 pairs x 3 placements x 8 numbers of copies.
VALIDATION_TEXTS = 6000
# Bootstrap samples behind the interval of a mean over tokens.
RESAMPLES = 10_000
# Largest difference between our validation rate of a candidate and the published one. A rate is a weighted
# share of pairs, so rates either agree to rounding or differ by at least one pair.
SAME_RATE = 1e-6
# Number of texts in a shard on an accelerator, which smaller shards would not keep busy. The size changes
# results only by rounding.
ACCELERATOR_SHARD = 65_536


def minilm(
    published: Path = PUBLISHED,
    device: str | None = None,
    replay: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Run std on the whole vocabulary, and compare with the published results.

    The run uses the published sentence pairs. Its candidates, scores, validation rates and sticky tokens are
    compared with the published ones. The run takes about a day on two cores, and four minutes on an H100.
    With --out, its folder is kept, and the same command continues a run that was interrupted.

    With --replay N, only N published candidates, drawn at random with --seed, are validated, by the same code
    as in a run on the whole vocabulary. Half of them are sticky tokens, for which the Manhattan rates were
    published, too. This encodes 4,896 texts per candidate.
    """
    encoder = load_encoder(MINILM, device=device)
    candidates = published_candidates_of_minilm(published)
    pairs = published / "minilm_pairs.csv"
    if replay is not None:
        compare_replay(encoder, candidates, pairs, replay, seed)
        return
    results = Results("parity", encoder.device, model=MINILM)
    check_vocabularies(results, published)
    check_mean_similarity(results, encoder, MINILM_U)
    options: dict[str, Any] = {}
    if encoder.device != "cpu":
        options["shard_probes"] = ACCELERATOR_SHARD
    with tempfile.TemporaryDirectory() as work:
        folder = out or Path(work) / "run"
        run = detected(encoder, method="std", pairs=pairs, out=folder, **options)
        compare_run(results, run, candidates)
    results.finish()


def published_candidates_of_minilm(published: Path) -> pl.DataFrame:
    """Return the published candidates of all-MiniLM-L6-v2, with their rates by all three distances.

    The Manhattan rate is null for the candidates that are not sticky, as it was published for sticky tokens
    only.
    """
    rates = published_table(published, "sticky_tokens_rates").filter(model=MINILM)
    manhattan = rates.select("token_id", validation_rate_manhattan="rate_manhattan")
    candidates = published_table(published, "minilm_candidates")
    return candidates.join(manhattan, on="token_id", how="left", maintain_order="left")


def compare_replay(
    encoder: Encoder, published_candidates: pl.DataFrame, pairs: Path, count: int, seed: int
) -> None:
    """Validate ``count`` random published candidates, and compare their rates with the published rates."""
    results = Results("parity-replay", encoder.device, model=MINILM, seed=seed)
    generator = np.random.default_rng(seed)
    sticky_rows = np.flatnonzero(published_candidates["sticky"].to_numpy())
    drawn_sticky = generator.choice(sticky_rows, min(count // 2, len(sticky_rows)), replace=False)
    other_rows = np.flatnonzero(~published_candidates["sticky"].to_numpy())
    drawn_others = generator.choice(
        other_rows, min(count - len(drawn_sticky), len(other_rows)), replace=False
    )
    rows = np.sort(np.concatenate([drawn_sticky, drawn_others]))
    replayed_candidates = published_candidates[rows]
    token_ids = replayed_candidates["token_id"].to_list()
    rates = replayed_rates(encoder, published_candidates, token_ids, pairs)
    compare_rates(results, replayed_candidates, rates)
    results.finish()


def replayed_rates(
    encoder: Encoder, published_candidates: pl.DataFrame, token_ids: list[int], pairs: Path
) -> dict[str, NDArray[np.float64]]:
    """Validate some of the published candidates with the random placements of the published run.

    Args:
        encoder: the model.
        published_candidates: all published candidates. The placements of a candidate depend on the
            candidates before it, so they are drawn for all of them.
        token_ids: the candidates to validate.
        pairs: file with the published sentence pairs.

    Returns:
        For each metric, the validation rates in the order of ``token_ids``.
    """
    settings = StdSettings()
    vocabulary = analyze_vocabulary(encoder)
    tokens_by_id = {token.id: token for token in vocabulary.available}
    scores = dict(published_candidates.select("token_id", "sticky_score").iter_rows())
    candidates = [tokens_by_id[token_id] for token_id in validation_order(scores)]
    tokens = [tokens_by_id[token_id] for token_id in token_ids]
    with progress_bar() as progress:
        runner = Runner.in_memory(encoder, progress, shard_probes=1)
        corpus = choose_corpus(None, pairs)
        job = Job(encoder, settings, corpus, vocabulary, tokens, scope=Scope.NAMED)
        plan = make_plan(job, runner)
        paths = published_paths(encoder, settings, plan, vocabulary.available, candidates)
        stage = replace(validation_stage(encoder, settings, plan), gaps_of=paths)
        validated = runner(stage, tokens, truncate=True)
    return {metric: validated[f"rate_{metric}"].to_numpy() for metric in Metric}


def compare_run(results: Results, run: stickytoken.Run, published_candidates: pl.DataFrame) -> None:
    """Check the candidates, rates, sticky tokens and number of texts of a run on the whole vocabulary."""
    candidates = run.tokens.filter(pl.col("validation_rate").is_not_null())
    result = record_as(run.result, StdResultRecord)
    compare_candidates(results, candidates, published_candidates, result.score_threshold)
    shared = published_candidates.select("token_id").join(
        candidates, on="token_id", how="inner", maintain_order="left"
    )
    published_shared = published_candidates.join(shared.select("token_id"), on="token_id", how="semi")
    rates = {
        "cosine": shared["validation_rate"].to_numpy(),
        "euclidean": shared["validation_rate_euclidean"].to_numpy(),
        "manhattan": shared["validation_rate_manhattan"].to_numpy(),
    }
    compare_rates(results, published_shared, rates)
    compare_sticky_tokens(results, run, published_candidates)
    texts_without_bounds = run.available * SCORING_TEXTS + len(candidates) * VALIDATION_TEXTS
    share = result.sequences / texts_without_bounds
    results.check(
        "texts",
        "at most 55% of a run without bounds",
        f"{result.sequences:,} of {texts_without_bounds:,}: {share:.1%}",
        result.sequences <= 0.55 * texts_without_bounds,
        seconds=result.seconds,
    )


def compare_candidates(
    results: Results, candidates: pl.DataFrame, published_candidates: pl.DataFrame, threshold: float
) -> None:
    """Check that our candidates are the published ones, and have the same scores.

    A token that only one side has as a candidate is ignored if its score differs from the threshold, the
    minimum score of a candidate, by no more than rounding.
    """
    published_scores = published_candidates.rename({"sticky_score": "published_score"})
    joined = candidates.join(published_scores, on="token_id", how="full")
    is_on_one_side = pl.col("token_id").is_null() | pl.col("token_id_right").is_null()
    score = pl.coalesce("sticky_score", "published_score")
    is_far_from_threshold = (score - threshold).abs() > TIE
    different = joined.filter(is_on_one_side).filter(is_far_from_threshold)
    results.check(
        "candidates",
        f"the {len(published_candidates)} published ones",
        f"{len(candidates)} candidates, {len(different)} differ",
        different.is_empty(),
        differ=different.select(pl.coalesce("token", "token_right")).to_series().to_list(),
    )
    differences = (joined["sticky_score"] - joined["published_score"]).abs().drop_nulls().to_numpy()
    largest = float(differences.max())
    results.check(
        "scores of the candidates", "within 1e-4", f"largest difference {largest:.1e}", largest <= 1e-4
    )


def compare_rates(
    results: Results, published_candidates: pl.DataFrame, rates_by_metric: dict[str, NDArray[np.float64]]
) -> None:
    """Check the validation rates of some candidates, in one check for each metric.

    Args:
        results: receives the checks.
        published_candidates: rows of the table of candidates. A rate that was not published is null.
        rates_by_metric: our rates for each metric, in the order of ``published_candidates``.
    """
    for metric, rates in rates_by_metric.items():
        published_rates = published_candidates[f"validation_rate_{metric}"]
        compared = published_candidates.filter(published_rates.is_not_null())
        if compared.is_empty():
            continue
        ours = rates[published_rates.is_not_null().to_numpy()]
        differences = np.abs(ours - published_rates.drop_nulls().to_numpy())
        is_different = pl.Series(differences > SAME_RATE)
        different_tokens = compared.filter(is_different)["token"].to_list()
        results.check(
            f"{metric} rates of {len(compared)} candidates",
            f"each within {SAME_RATE:.0e}",
            f"largest difference {differences.max():.1e}",
            not different_tokens,
            differ=different_tokens,
        )


def compare_sticky_tokens(results: Results, run: stickytoken.Run, published_candidates: pl.DataFrame) -> None:
    """Check that the run finds exactly the published sticky tokens."""
    sticky_ids = set(run.sticky["token_id"])
    published_ids = set(published_candidates.filter("sticky")["token_id"])
    results.check(
        "sticky tokens",
        f"exactly the {len(published_ids)} published ones",
        f"{len(sticky_ids & published_ids)} of them, {len(sticky_ids - published_ids)} others",
        sticky_ids == published_ids,
    )


def bounds(
    device: str | None = None, tokens: int = 2000, turns: int = 2, published: Path = PUBLISHED
) -> None:
    """Score random tokens with and without upper bounds, and compare time and texts.

    With upper bounds of the scores, std encodes only the texts that are needed to find the best tokens;
    without them, it encodes all texts. The two ways take turns, and the shortest time of each counts. The
    command also checks that the bounds lose no candidate and are never below the exact score. A turn with
    2,000 tokens takes 35 minutes on two cores.
    """
    encoder = load_encoder(MINILM, device=device)
    vocabulary = analyze_vocabulary(encoder)
    indices = np.random.default_rng(0).choice(len(vocabulary.available), tokens, replace=False)
    sampled_tokens = [vocabulary.available[index] for index in sorted(indices.tolist())]
    corpus = choose_corpus(None, published / "minilm_pairs.csv")
    costs: dict[Scores, list[ShardCost]] = {Scores.NEEDED: [], Scores.ALL: []}
    tables: dict[Scores, pl.DataFrame] = {}
    for _ in range(turns):
        for scores in (Scores.NEEDED, Scores.ALL):
            settings = StdSettings(scores=scores)
            job = Job(encoder, settings, corpus, vocabulary, sampled_tokens, scope=Scope.SAMPLE)
            table, cost = score_job(job)
            tables[scores] = table
            costs[scores].append(cost)
    results = Results("parity-bounds", encoder.device, model=MINILM)
    check_costs(results, costs, tokens)
    check_bounds(results, tables[Scores.NEEDED], tables[Scores.ALL])
    results.finish()


def score_job(job: Job[StdSettings]) -> tuple[pl.DataFrame, ShardCost]:
    """Score the tokens of a job. Return the table of scores, and the cost in seconds and texts."""
    encoder = job.encoder
    shard_probes = SHARD_PROBES if encoder.device == "cpu" else ACCELERATOR_SHARD
    with tempfile.TemporaryDirectory() as work, progress_bar() as progress:
        folder = ResultFolder(Path(work))
        runner = Runner(LocalEngine(encoder), folder, progress, shard_probes)
        plan = make_plan(job, runner)
        counted = CountedRunner(runner, folder, truncate=True)
        table = score_tokens(job, scoring_pairs(encoder, job.settings, plan), counted)
        return table, folder.total_cost()


def check_costs(results: Results, costs: dict[Scores, list[ShardCost]], token_count: int) -> None:
    """Check that bounds halve the time, and report the number of texts per token with and without bounds.

    ``costs`` has the costs of all turns, with bounds (``NEEDED``) and without (``ALL``).
    """
    seconds = {}
    texts_per_token = {}
    for scores, costs_of_turns in costs.items():
        seconds[scores.value] = [cost.seconds for cost in costs_of_turns]
        # All turns encode the same texts.
        texts_per_token[scores.value] = costs_of_turns[0].sequences / token_count
    ratio = min(seconds["needed"]) / min(seconds["all"])
    results.check(
        f"time to score {token_count:,} tokens",
        "at most 0.5 of it",
        f"{ratio:.2f} of the time without",
        ratio <= 0.5,
        seconds=seconds,
    )
    results.check(
        "texts",
        "counted",
        f"{texts_per_token['needed']:.1f} of {texts_per_token['all']:.0f} texts a token",
        True,
        texts=texts_per_token,
    )


def check_bounds(results: Results, scored_by_bounds: pl.DataFrame, scored_exactly: pl.DataFrame) -> None:
    """Check that every candidate has an exact score, and that no upper bound is below the exact score.

    Args:
        results: receives the check.
        scored_by_bounds: the table of scores with bounds, in which the scores of other tokens are null.
        scored_exactly: the table of scores without bounds, which has an exact score for every token.
    """
    joined = scored_by_bounds.join(scored_exactly, on="token_id", suffix="_exact")
    threshold = candidate_threshold(joined["score_cosine_exact"].to_numpy(), StdSettings().candidate_share)
    candidates = joined.filter(pl.col("score_cosine_exact") >= threshold)
    lost_candidates = candidates.filter(pl.col("score_cosine").is_null())
    # The slack is for the rounding of vectors, which depends on the batch in which a text was encoded.
    is_violated = pl.col("score_at_most") < pl.col("score_cosine_exact") - 1e-4
    violated_bounds = joined.filter(is_violated)
    results.check(
        "candidates",
        "none lost",
        f"{len(lost_candidates)} of {len(candidates)} candidates lost, "
        f"{len(violated_bounds)} bounds violated",
        lost_candidates.is_empty() and violated_bounds.is_empty(),
    )


# Options of the short runs that are killed. With so many tokens of `std`, some are ruled out by bounds, in
# several rounds.
KILLED_RUNS = {
    "std": "--sample 1100 --set validation-pairs=4 --set scoring-pairs=1 --set copies=4",
    "profile": "--sample 100",
}


def resume(method: str = "std") -> None:
    """Kill short runs of a method at random moments and continue them; with std, also measure peak memory.

    The continued runs must write the same table, byte for byte, as an uninterrupted run. All runs use the
    CPU. This command works only on Linux.
    """
    results = Results("parity-resume" if method == "std" else f"resume-{method}", model=MINILM)
    if method == "std":
        check_peak_memory(results)
    kill_and_resume(results, ["--method", method, *KILLED_RUNS[method].split()])
    results.finish()


def check_peak_memory(results: Results) -> None:
    """Check the peak memory of a process that computes the mean similarity and samples the pairs."""
    options = ("--method", "std", "--sample", "2", "--set", "validation-pairs=2")
    with tempfile.TemporaryDirectory() as work:
        status, _, _, peak_bytes = watched(detect_command(Path(work) / "run", *options))
    is_passed = status == 0 and peak_bytes < 2e9
    results.check(
        "peak memory: u and pairs", "under 2 GB", f"{peak_bytes / 1e9:.2f} GB", is_passed, bytes=peak_bytes
    )


def kill_and_resume(results: Results, options: list[str]) -> None:
    """Kill a short run at random moments, continue it, and check that the bytes of its table are the same."""
    generator = random.Random(0)

    def table_of_finished_run(folder: Path) -> bytes:
        """Start the run in this folder, or continue it. Return the bytes of tokens.parquet."""
        subprocess.run(detect_command(folder, *options), check=True, stdout=subprocess.DEVNULL)
        return (folder / "tokens.parquet").read_bytes()

    with tempfile.TemporaryDirectory() as work:
        started = time.perf_counter()
        expected = table_of_finished_run(Path(work) / "whole")
        duration = time.perf_counter() - started
        identical_count = 0
        kill_times = []  # seconds after the start of each run
        for attempt in range(KILLS):
            folder = Path(work) / f"killed-{attempt}"
            process = subprocess.Popen(detect_command(folder, *options), stdout=subprocess.DEVNULL)
            kill_time = round(generator.uniform(0.05, 0.95) * duration, 2)
            kill_times.append(kill_time)
            time.sleep(kill_time)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            if table_of_finished_run(folder) == expected:
                identical_count += 1
    results.check(
        f"kill -9 at {KILLS} random moments, then resume",
        "identical bytes each time",
        f"{identical_count} of {KILLS} identical",
        identical_count == KILLS,
        seconds={"killed": kill_times, "uninterrupted": duration},
    )


def detect_command(out: Path, *options: str) -> list[str]:
    """Return the command line of a detection on the CPU that writes to the folder ``out``."""
    command = [sys.executable, "-m", "stickytoken", "detect", MINILM, "--device", "cpu", "--quiet"]
    return [*command, *options, "--out", str(out)]


def compare_model(model: Path, pairs: Path, published: Path = PUBLISHED, tokens: int = 12) -> None:
    """Compare another model's similarities and validation rates with the published ones.

    MODEL is a folder, named as the model is in the published tables. PAIRS is the file of the model's
    published sentence pairs. Compared are the similarities of the pairs, the mean similarity u and the
    validation rates of some published sticky tokens (--tokens). If the similarities of the pairs differ, the
    model is not the published one. Takes 20 minutes.
    """
    encoder = load_encoder(model)
    name = model.name
    published_model = published_table(published, "models").filter(model_name=name)
    if published_model.is_empty():
        refuse(f"{name} is not in the published tables")
    results = Results(f"parity-{name}", encoder.device, model=name)
    check_similarities(results, encoder, pl.read_csv(pairs))
    check_mean_similarity(results, encoder, published_model["vocabulary_mean_cosine"].item())
    sticky_tokens = published_table(published, "sticky_tokens_rates").filter(model=name)
    compared_tokens = evenly_spaced_rows(sticky_tokens, tokens)
    rates = validation_rates(encoder, compared_tokens["token_id"].to_list(), pairs)
    for metric, ours in rates.items():
        largest = float(np.abs(ours - compared_tokens[f"rate_{metric}"].to_numpy()).max())
        results.check(
            f"{metric} rates of {len(ours)} published tokens",
            "each within 0.02",
            f"largest difference {largest:.4f}",
            largest <= 0.02,
            tokens=compared_tokens["token"].to_list(),
            ours=ours.tolist(),
        )
    results.finish()


def check_similarities(results: Results, encoder: Encoder, pairs: pl.DataFrame) -> None:
    """Check the cosine similarities of the published pairs that the model reads in full."""
    is_read_in_full = []
    for pair in zip(pairs["sentence1"], pairs["sentence2"], strict=True):
        token_ids = encoder.content_ids(pair)
        is_read_in_full.append(all(encoder.fits(ids) for ids in token_ids))
    # The published similarities of the other pairs are those of truncated texts.
    pairs = pairs.filter(pl.Series(is_read_in_full))
    first = unit_vectors(encoder.encode(pairs["sentence1"].to_list()))
    second = unit_vectors(encoder.encode(pairs["sentence2"].to_list()))
    similarities = (first * second).sum(axis=1)
    largest = float(np.abs(similarities - pairs["similarity"].to_numpy()).max())
    results.check(
        f"similarities of {len(pairs):,} pairs",
        "within 1e-5",
        f"{largest:.1e}",
        largest <= 1e-5,
        worst=largest,
    )


def check_mean_similarity(results: Results, encoder: Encoder, published_mean: float) -> None:
    """Check that the mean similarity u of the model is the published one."""
    u = measure_mean_similarity(encoder, Runner.in_memory(encoder, ignore_progress)).value
    results.check(
        "mean similarity u",
        f"{published_mean:.5f} to 1e-4",
        f"{u:.6f}",
        abs(u - published_mean) <= 1e-4,
        u=u,
    )


def evenly_spaced_rows(table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return at most ``count`` rows of a table, evenly spaced from the first row to the last."""
    indices = np.linspace(0, len(table) - 1, min(count, len(table))).round().astype(int)
    return table.filter(pl.int_range(pl.len()).is_in(indices.tolist()))


def validation_rates(encoder: Encoder, token_ids: list[int], pairs: Path) -> dict[str, NDArray[np.float64]]:
    """Validate tokens on the pairs of a file. Return their rates for each metric, in the same order."""
    with progress_bar() as progress:
        evidence = probe(encoder, token_ids, settings=StdSettings(), pairs=pairs, progress=progress)
    std_evidence = [result for result in evidence if isinstance(result, StdEvidence)]
    return {
        metric: np.array([result.validation_rate[metric] for result in std_evidence]) for metric in Metric
    }


def check_vocabularies(results: Results, published: Path) -> None:
    """Check the available tokens and categories of three vocabularies against the published ones.

    ``published`` is the folder of the published tables. The tokenizers of T5 and RoBERTa are in the folder
    ``tokenizers`` beside it.
    """
    tokenizers = published.parent / "tokenizers"
    check_vocabulary(results, published, "MiniLM", MINILM, available_count=23_699, allowed_differences=0)
    check_vocabulary(
        results, published, "T5", tokenizers / "t5", available_count=32_097, allowed_differences=1
    )
    # The categories of RoBERTa's tokens were not published.
    check_vocabulary(
        results,
        published,
        "RoBERTa",
        tokenizers / "roberta-base",
        available_count=49_894,
        allowed_differences=None,
    )


def check_vocabulary(
    results: Results,
    published: Path,
    name: str,
    tokenizer: str | Path,
    *,
    available_count: int,
    allowed_differences: int | None,
) -> None:
    """Check the number of available tokens of a vocabulary, and the categories of its tokens.

    Args:
        results: receives the checks.
        published: folder of the published tables.
        name: name of the vocabulary, in the checks and in the name of its published table.
        tokenizer: name or folder of the model that the tokenizer belongs to.
        available_count: the published number of available tokens.
        allowed_differences: how many categories may differ from the published ones; None if there are no
            published categories.
    """
    vocabulary = analyze_vocabulary(load_tokenizer(tokenizer))
    count = len(vocabulary.available)
    results.check(f"{name}: available tokens", f"{available_count:,}", f"{count:,}", count == available_count)
    if allowed_differences is None:
        return
    published_categories = published_table(published, f"{name.lower()}_categories")["category"].to_list()
    different_count = 0
    for category, published_category in zip(vocabulary.categories, published_categories, strict=True):
        if category.value != published_category:
            different_count += 1
    bar = f"at most {allowed_differences}" if allowed_differences else "0 of 30,522"
    is_passed = different_count <= allowed_differences
    results.check(f"{name}: categories that differ", bar, str(different_count), is_passed)


def documents() -> None:
    """Measure the 21 tokens that the paper published for all-MiniLM-L6-v2 in documents. A minute.

    The result file is parity-documents.json. The table in docs/paper.md has its numbers.
    """
    tokens = published_tokens(MINILM)["token_id"].to_list()
    encoder = load_encoder(MINILM, device="cpu")
    probed = cast("list[ProfileEvidence]", probe(encoder, tokens, method="profile", progress=ignore_progress))
    results = Results("parity-documents", model=MINILM)
    for measure in MEASURES:
        values = np.array([getattr(token, measure.key) for token in probed])
        lows = np.array([getattr(token, f"{measure.key}_low") for token in probed])
        highs = np.array([getattr(token, f"{measure.key}_high") for token in probed])
        ordinary = probed[0].ordinary_push if measure is PUSH else 0.0
        mean = bootstrap(values)
        results.check(
            f"{measure.key}: mean of the published tokens", "none", f"{mean.value:.3f}", **mean._asdict()
        )
        results.check(f"{measure.key}: tokens above an ordinary one", "none", f"{(values > ordinary).sum()}")
        results.check(f"{measure.key}: whole interval above it", "none", f"{(lows > ordinary).sum()}")
        results.check(f"{measure.key}: whole interval below it", "none", f"{(highs < ordinary).sum()}")
        for place, row in enumerate(np.argsort(-values)[:2], start=1):
            name = f"{measure.key}: number {place}"
            results.check(
                name, "none", f"{values[row]:.3f}, {probed[row].token}", low=lows[row], high=highs[row]
            )
    results.check("push of an ordinary token", "none", f"{probed[0].ordinary_push:.2f}")
    fewest = DOCUMENT_COUNTS[0]
    dropped = sum(token.documents == fewest for token in probed)
    results.check(f"tokens measured in {fewest} documents only", "none", str(dropped))
    sticky = [token.token for token in probed if token.verdict == "sticky"]
    results.check("published tokens that are sticky", "none", f"{len(sticky)}: {', '.join(sticky)}")
    results.finish()


def bootstrap(values: NDArray[np.float64]) -> Interval[float]:
    """Return the mean over tokens, with its 95% interval by a bootstrap over them."""
    generator = np.random.default_rng(0)
    means = generator.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    return Interval(float(values.mean()), *np.percentile(means, [2.5, 97.5]).tolist())


if __name__ == "__main__":
    commands(__doc__, minilm, bounds, resume, documents, model=compare_model)
