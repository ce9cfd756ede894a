"""Compare the speed of the engine with SentenceTransformer.encode and with the loops of the paper's code.

Speeds are in texts per second. Everything that is compared is measured in turns, in one process on one
machine, because on a shared machine only ratios within a run are meaningful. With --quick, a measurement is
shorter and less exact.

Each command writes its checks to a file in benchmarks/results whose name begins with "throughput". For
example: `python benchmarks/throughput.py scoring --quick`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import MINILM, Results, by_turns, commands
from models import plain_model
from stickytoken import load_encoder
from stickytoken.data import choose_corpus
from stickytoken.encoders import IdEncoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import LocalEngine, Shard, ignore_progress
from stickytoken.measurement.stages import TokenWork, cut_into_shards
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.runner import Runner
from stickytoken.methods.std import StdSettings
from stickytoken.methods.std.placement import Walk, walk_vocabulary
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.scoring import ScoringStage, scoring_pairs
from stickytoken.vocabulary import categorize

# Program of the other job: multiply matrices with two threads, without end.
OTHER_JOB = "import torch; torch.set_num_threads(2); x = torch.rand(1500, 1500)\nwhile True: x @ x"
# The two conditions, as the names of checks have them.
ALONE = "alone"
BESIDE = "beside a job of two threads"


@dataclass(frozen=True)
class TextSet:
    """A set of texts, and how many times as fast as SentenceTransformer.encode the engine must encode it.

    Attributes:
        lengths: number of content tokens of each text.
        bars: the minimum ratio of speeds, keyed by condition (`ALONE` or `BESIDE`).
    """

    lengths: list[int]
    bars: dict[str, float]


# 720 lengths, which take 56 different values. Texts of one length have the mean of these lengths.
LENGTHS = np.resize(np.arange(4, 60), 720)
# Sets for models with vectors of fewer than `LARGE_DIMENSION` components, keyed by the names in checks.
SMALL = {
    "720 texts of one length": TextSet([round(float(LENGTHS.mean()))] * 720, {ALONE: 1.8, BESIDE: 1.2}),
    "720 texts of 56 lengths": TextSet(LENGTHS.tolist(), {ALONE: 1.8, BESIDE: 1.2}),
    "200 documents of 20 to 250 tokens": TextSet(
        np.linspace(20, 250, 200).astype(int).tolist(), {ALONE: 1.3, BESIDE: 1.0}
    ),
}
# Set for larger models, which are slow: a few short texts.
LARGE = {"500 texts of 24 tokens": TextSet([24] * 500, {ALONE: 1.5, BESIDE: 1.1})}
LARGE_DIMENSION = 512


@contextmanager
def other_job() -> Iterator[None]:
    """Multiply matrices with two threads in another process while the body runs."""
    with subprocess.Popen([sys.executable, "-c", OTHER_JOB]) as job:
        time.sleep(5)  # until the process has imported torch
        try:
            yield
        finally:
            job.kill()


def prepared(encoder: IdEncoder, count: int) -> tuple[ScoringStage, list[Token], int]:
    """Prepare std scoring of random tokens.

    The stage is run once on two other tokens, so that the kernels for its texts are already built.

    Args:
        encoder: the model.
        count: number of tokens to score.

    Returns:
        The scoring stage, ``count`` random tokens, and the number of available tokens of the vocabulary.
    """
    vocabulary = categorize(encoder.tokenizer)
    available = vocabulary.available
    settings = StdSettings(sentence_count=500)
    corpus = choose_corpus(None, None)
    job = Job(encoder, settings, corpus, vocabulary, available, scope=Scope.WHOLE)
    plan = make_plan(job, Runner.in_memory(encoder, ignore_progress))
    indices = np.random.default_rng(0).permutation(len(available))[: count + 2]
    random_tokens = [available[index] for index in indices]
    pairs = scoring_pairs(encoder, settings, plan)
    walk = Walk.in_carriers(pairs.carriers, settings)
    paths = walk_vocabulary(settings.seed, available, random_tokens, walk)
    stage = ScoringStage(pairs, dict.fromkeys(paths, pairs.text_indices), paths)
    compute_shard(stage, Shard(0, tuple(random_tokens[:2])), encoder)
    return stage, random_tokens[2:], len(available)


def compute_shard(stage: ScoringStage, shard: Shard[Token], encoder: IdEncoder) -> None:
    """Compute a shard as a run does."""
    list(LocalEngine(encoder).compute(TokenWork(stage), [shard]))


def texts_of(stage: ScoringStage, tokens: Sequence[Token]) -> list[str]:
    """Return the texts that the stage encodes for these tokens, token by token."""
    return [probe for token in tokens for probe in stage.probes(token) if isinstance(probe, str)]


def library(plain: Any, texts: list[str], *sizes: int) -> dict[str, Callable[[], object]]:
    """Return functions that encode the texts with SentenceTransformer.encode, one for each batch size.

    Args:
        plain: the SentenceTransformer.
        texts: the texts.
        *sizes: the batch sizes, which are also the keys of the result, as strings.
    """
    encode_by_batch_size: dict[str, Callable[[], object]] = {}
    for size in sizes:
        encode = partial(plain.encode, texts, batch_size=size, show_progress_bar=False)
        encode_by_batch_size[str(size)] = encode
    return encode_by_batch_size


def check_rates(
    results: Results,
    name: str,
    bar: float,
    text_count: int,
    seconds: dict[str, list[float]],
    typical: Callable[[list[float]], float],
) -> None:
    """Check that the engine is ``bar`` times as fast as the library with its best batch size.

    Args:
        results: receives the check.
        name: name of the check.
        bar: the minimum ratio of speeds.
        text_count: number of texts that were encoded in each turn.
        seconds: the seconds of each turn, keyed by "engine" or by batch size of the library.
        typical: returns the typical value of the seconds of all turns, such as their minimum.
    """
    rates = {way: text_count / typical(seconds_of_way) for way, seconds_of_way in seconds.items()}
    engine_rate = rates.pop("engine")
    best_batch_size = max(rates, key=lambda batch_size: rates[batch_size])
    library_rate = rates[best_batch_size]
    ratio = engine_rate / library_rate
    results.check(
        name,
        f"at least {bar} times SentenceTransformer.encode",
        f"{ratio:.2f} times ({engine_rate:.0f} to {library_rate:.0f} texts a second, "
        f"with batches of {best_batch_size})",
        ratio >= bar,
        seconds=seconds,
    )


def scoring(device: str = "cpu", quick: bool = False) -> None:
    """Compare the engine with SentenceTransformer.encode on texts of std scoring.

    The texts are all 4,114 texts of 34 random tokens; with --quick, 968 texts of eight tokens. They are
    encoded in turns by the engine and by SentenceTransformer.encode with batches of 32, 64 and 128, first
    alone and then beside a job of two threads. The shortest time of each counts. Takes about half an hour on
    two cores.
    """
    plain = plain_model(MINILM, device)
    encoder = load_encoder(plain)
    stage, tokens, _ = prepared(encoder, 8 if quick else 34)
    texts = texts_of(stage, tokens)
    shard = Shard(0, tuple(tokens))
    ways = library(plain, texts, 32, 64, 128)
    ways["engine"] = partial(compute_shard, stage, shard, encoder)
    turns = 1 if quick else 3
    seconds_alone = by_turns(ways, turns)
    with other_job():
        seconds_beside = by_turns(ways, turns)
    results = Results("throughput", device)
    title = f"engine, {len(texts):,} texts of std scoring"
    check_rates(results, f"{title}, {ALONE}", 2.0, len(texts), seconds_alone, min)
    check_rates(results, f"{title}, {BESIDE}", 1.2, len(texts), seconds_beside, min)
    results.finish()


def loops(device: str = "cpu", quick: bool = False) -> None:
    """Compare the engine with the loops of the paper's code on std scoring.

    The loops encode the texts of each token separately, eight texts at a time. 500 random tokens (with
    --quick, four) are scored in slices as large as the shards of a run, each slice by the engine and by the
    loops in turns. The times are extrapolated to the whole vocabulary. Takes about ten minutes on two cores.
    """
    plain = plain_model(MINILM, device)
    encoder = load_encoder(plain)
    stage, tokens, available_count = prepared(encoder, 4 if quick else 500)

    def run_paper_loops(tokens_of_slice: Sequence[Token]) -> None:
        """Encode the texts of each token as the paper's code does."""
        for token in tokens_of_slice:
            texts = texts_of(stage, [token])
            for start in range(0, len(texts), 8):
                plain.encode(texts[start : start + 8], show_progress_bar=False)

    token_counts: list[int] = []
    engine_seconds: list[float] = []
    loops_seconds: list[float] = []
    for shard in cut_into_shards(tokens, stage.probes_per_token, 8192):
        ways: dict[str, Callable[[], object]] = {
            "engine": partial(compute_shard, stage, shard, encoder),
            "loops": partial(run_paper_loops, shard.items),
        }
        seconds = by_turns(ways, 1)
        token_counts.append(len(shard.items))
        engine_seconds.append(seconds["engine"][0])
        loops_seconds.append(seconds["loops"][0])
    scored_count = sum(token_counts)
    engine_hours = sum(engine_seconds) * available_count / scored_count / 3600
    loops_hours = sum(loops_seconds) * available_count / scored_count / 3600
    ratio = loops_hours / engine_hours
    ratios_of_slices = np.divide(loops_seconds, engine_seconds)
    results = Results("throughput_loops", device)
    results.check(
        f"std scoring of {available_count:,} tokens, judged by {scored_count}: paper's loops against engine",
        "at least 3 times as long",
        f"{ratio:.2f} times ({loops_hours:.1f} to {engine_hours:.1f} hours; "
        f"{ratios_of_slices.min():.2f} to {ratios_of_slices.max():.2f} by slice)",
        ratio >= 3,
        tokens=token_counts,
        engine=engine_seconds,
        loops=loops_seconds,
    )
    results.finish()


def sets(
    model: str = MINILM, device: str = "cpu", quick: bool = False, name: str = "throughput_sets"
) -> None:
    """Compare `encode` of this package with SentenceTransformer.encode on sets of texts.

    Each set is encoded in turns by both, first alone and then beside a job of two threads.
    SentenceTransformer.encode uses batches of 32 and of 128, and the faster batch size counts. The median
    time of five turns counts; with --quick, of two turns. The sets depend on the dimension of the model. The
    result is written to benchmarks/results/NAME.json.
    """
    plain = plain_model(model, device)
    encoder = load_encoder(plain)
    results = Results(name, device)
    text_sets = SMALL if encoder.dimension < LARGE_DIMENSION else LARGE
    words = words_of_one_token(encoder)
    texts = {title: random_texts(words, text_set.lengths) for title, text_set in text_sets.items()}
    ways_by_set: dict[str, dict[str, Callable[[], object]]] = {}
    for title, texts_of_set in texts.items():
        encoder.encode(texts_of_set)  # builds kernels
        engine: Callable[[], object] = partial(encoder.encode, texts_of_set)
        ways_by_set[title] = {"engine": engine, **library(plain, texts_of_set, 32, 128)}
    turns = 2 if quick else 5

    def time_sets() -> dict[str, dict[str, list[float]]]:
        """Return the seconds of all turns for each set and each way to encode it."""
        return {title: by_turns(ways, turns) for title, ways in ways_by_set.items()}

    seconds_by_condition = {ALONE: time_sets()}
    with other_job():
        seconds_by_condition[BESIDE] = time_sets()
    for condition, seconds_by_set in seconds_by_condition.items():
        for title, seconds in seconds_by_set.items():
            check_name = f"{Path(model).name}, {title}, {condition}"
            bar = text_sets[title].bars[condition]
            check_rates(results, check_name, bar, len(texts[title]), seconds, statistics.median)
    results.finish()


def words_of_one_token(encoder: IdEncoder) -> list[str]:
    """Return the vocabulary entries of ASCII letters that the tokenizer reads as one token in a text."""
    entries = [token.text.strip() for token in categorize(encoder.tokenizer).available]
    words = [entry for entry in entries if entry.isalpha() and entry.isascii()]
    # Read each word after "a", which is one token, because a tokenizer may read a word differently at the
    # start of a text.
    ids_by_word = encoder.content_ids([f"a {word}" for word in words])
    return [word for word, ids in zip(words, ids_by_word, strict=True) if len(ids) == 2]


def random_texts(words: list[str], lengths: list[int]) -> list[str]:
    """Return texts with these numbers of random words. The same arguments always give the same texts."""
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(words, length)) for length in lengths]


if __name__ == "__main__":
    commands(__doc__, scoring, loops, sets)
