"""Texts a second of the engine, beside SentenceTransformer.encode and the paper's loops.

Everything is measured in one run on one machine, turn by turn: on a shared machine only ratios within a run
mean something. --quick takes few texts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import MINILM, Results, by_turns, commands
from models import plain_model
from stickytoken.data import choose_corpus
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import Shard, compute_shard, cut_into_shards, ignore_progress
from stickytoken.methods.std import StdSettings
from stickytoken.methods.std.placement import walk_vocabulary
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.scoring import ScoringStage, scoring_pairs, scoring_walk
from stickytoken.vocabulary import categorize

OTHER_JOB = "import torch; torch.set_num_threads(2); x = torch.rand(1500, 1500)\nwhile True: x @ x"
BESIDE = "beside a job of two threads"
# Content tokens of each text, and how much faster than the library the engine must be alone and beside a job.
LENGTHS = np.resize(np.arange(4, 60), 720)  # 56 lengths
SMALL = {
    "720 texts of one length": ([round(float(LENGTHS.mean()))] * 720, 1.8, 1.2),
    "720 texts of 56 lengths": (LENGTHS.tolist(), 1.8, 1.2),
    "200 documents of 20 to 250 tokens": (np.linspace(20, 250, 200).astype(int).tolist(), 1.3, 1.0),
}
LARGE = {"500 texts of 24 tokens": ([24] * 500, 1.5, 1.1)}


@contextmanager
def other_job() -> Iterator[None]:
    """Multiply matrices with two threads in another process."""
    with subprocess.Popen([sys.executable, "-c", OTHER_JOB]) as job:
        time.sleep(5)
        try:
            yield
        finally:
            job.kill()


def prepared(encoder: IdEncoder, count: int) -> tuple[ScoringStage, list[Token], int]:
    """A stage whose kernels are built, random tokens to score, and the number of all tokens."""
    available = categorize(encoder.tokenizer).available
    settings = StdSettings(sentence_count=500)
    plan = make_plan(encoder, settings, choose_corpus(None, None), ignore_progress)
    drawn = [available[k] for k in np.random.default_rng(0).permutation(len(available))[: count + 2]]
    pairs = scoring_pairs(encoder, settings, plan)
    paths = walk_vocabulary(settings.seed, available, drawn, scoring_walk(pairs))
    stage = ScoringStage(pairs, dict.fromkeys(paths, pairs.text_indices), paths)
    compute_shard(stage, Shard(0, tuple(drawn[:2])), encoder)
    return stage, drawn[2:], len(available)


def texts_of(stage: ScoringStage, tokens: Sequence[Token]) -> list[str]:
    return [probe for token in tokens for probe in stage.probes(token) if isinstance(probe, str)]


def library(plain: Any, texts: list[str], *sizes: int) -> dict[str, Callable[[], object]]:
    """SentenceTransformer.encode with batches of these sizes."""
    return {
        str(size): partial(plain.encode, texts, batch_size=size, show_progress_bar=False) for size in sizes
    }


def check_rates(
    results: Results, name: str, bar: float, count: int, seconds: dict[str, list[float]], typical: Any
) -> None:
    """The engine against the library's best batch size, by its least or middle seconds."""
    rates = {way: count / typical(spent) for way, spent in seconds.items()}
    ours = rates.pop("engine")
    batch, theirs = max(rates.items(), key=lambda item: item[1])
    told = f"{ours / theirs:.2f} times ({ours:.0f} to {theirs:.0f} texts a second, with batches of {batch})"
    passed = ours / theirs >= bar
    results.check(name, f"at least {bar} times SentenceTransformer.encode", told, passed, seconds=seconds)


def scoring(device: str = "cpu", quick: bool = False) -> None:
    """The texts of std scoring, whole shards."""
    plain = plain_model(MINILM, device)
    encoder = load_encoder(plain)
    stage, tokens, _ = prepared(encoder, 8 if quick else 34)
    texts, shard = texts_of(stage, tokens), Shard(0, tuple(tokens))
    ways = library(plain, texts, 32, 64, 128) | {"engine": partial(compute_shard, stage, shard, encoder)}
    turns = 1 if quick else 3
    alone = by_turns(ways, turns)
    with other_job():
        beside = by_turns(ways, turns)
    results = Results("throughput", device)
    for condition, found, bar in (("alone", alone, 2.0), (BESIDE, beside, 1.2)):
        title = f"engine, {len(texts):,} texts of std scoring, {condition}"
        check_rates(results, title, bar, len(texts), found, min)
    results.finish()


def loops(device: str = "cpu", quick: bool = False) -> None:
    """std scoring of the whole vocabulary by the paper's loops, judged by slices as large as a run's shards.

    The loops encode every pair, placement and number of copies by itself, eight texts at a time.
    """
    plain = plain_model(MINILM, device)
    encoder = load_encoder(plain)
    stage, tokens, available = prepared(encoder, 4 if quick else 500)

    def paper_loops(slice_: Sequence[Token]) -> None:
        for token in slice_:
            probes = texts_of(stage, [token])
            for start in range(0, len(probes), 8):
                plain.encode(probes[start : start + 8], show_progress_bar=False)

    found: dict[str, list[float]] = {"tokens": [], "engine": [], "loops": []}
    for shard in cut_into_shards(tokens, stage.probes_per_token, 8192):
        found["tokens"].append(len(shard.tokens))
        engine = partial(compute_shard, stage, shard, encoder)
        seconds = by_turns({"engine": engine, "loops": partial(paper_loops, shard.tokens)}, 1)
        for way, (spent,) in seconds.items():
            found[way].append(spent)
    count = int(sum(found["tokens"]))
    ours, theirs = (sum(found[way]) * available / count / 3600 for way in ("engine", "loops"))
    ratios = np.divide(found["loops"], found["engine"])
    results = Results("throughput_loops", device)
    title = f"std scoring of {available:,} tokens, judged by {count}: paper's loops against engine"
    told = f"{theirs / ours:.2f} times ({theirs:.1f} to {ours:.1f} hours; "
    told += f"{ratios.min():.2f} to {ratios.max():.2f} by slice)"
    results.check(title, "at least 3 times as long", told, theirs / ours >= 3, **found)
    results.finish()


def sets(
    model: str = MINILM, device: str = "cpu", quick: bool = False, name: str = "throughput_sets"
) -> None:
    """Whole calls of encode on sets of texts; the better batch size of the library counts."""
    plain, title = plain_model(model, device), Path(model).name
    encoder, results = load_encoder(plain), Results(name, device)
    chosen = SMALL if encoder.dimension < 512 else LARGE
    # Random words that the tokenizer reads as one token each.
    named = (token.text.strip() for token in categorize(encoder.tokenizer).available)
    words = [word for word in named if word.isalpha() and word.isascii()]
    ids = encoder.content_ids([f"a {word}" for word in words])
    single = [word for word, own in zip(words, ids, strict=True) if len(own) == 2]
    texts = {}
    for kind, (lengths, _, _) in chosen.items():
        rng = np.random.default_rng(0)
        texts[kind] = [" ".join(rng.choice(single, length)) for length in lengths]
    turns, ways = 2 if quick else 5, dict[str, dict[str, Callable[[], object]]]()
    for kind, own in texts.items():
        encoder.encode(own)  # builds kernels
        ways[kind] = {"engine": partial(encoder.encode, own), **library(plain, own, 32, 128)}

    def timed() -> dict[str, dict[str, list[float]]]:
        return {kind: by_turns(each, turns) for kind, each in ways.items()}

    alone = timed()
    with other_job():
        beside = timed()
    for place, (condition, found) in enumerate((("alone", alone), (BESIDE, beside))):
        for kind, seconds in found.items():
            least, count = chosen[kind][1:][place], len(texts[kind])
            check_rates(results, f"{title}, {kind}, {condition}", least, count, seconds, statistics.median)
    results.finish()


if __name__ == "__main__":
    commands(__doc__, scoring, loops, sets)
