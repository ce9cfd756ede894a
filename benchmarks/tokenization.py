"""Texts of a run tokenized by word with a cache, against the whole tokenizer.

python benchmarks/tokenization.py            # three minutes on 2 CPU cores
python benchmarks/tokenization.py --quick    # seconds, on few texts
TOKENIZERS_PARALLELISM=false python benchmarks/tokenization.py --name tokenization_one_core

Both ways take turns, and the best of each counts. The cache starts empty each time. The garbage
collector is off meanwhile, as in timeit: its pauses would hit either way by chance.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from checks import Check, show, write
from stickytoken.corpora import load_sentences
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer, WordCache
from stickytoken.insertion import Placement, Token, copies_as_text, insert_as_text
from stickytoken.vocabulary import categorize

CARRIERS, PAIRS, COPIES = 6, 5, 8
# Texts that one call gets, about those of a shard.
BATCH = 4096
PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "tokenizers"


def workloads(tokens: Sequence[Token], carriers: Sequence[str]) -> dict[str, list[str]]:
    """Texts as the stages of the methods make them, token by token."""
    few = tokens[: max(1, len(tokens) * CARRIERS // (3 * PAIRS * COPIES))]
    return {
        f"{placement}, {COPIES} copies": [
            copies_as_text(token, carrier, placement, COPIES)
            for token in tokens
            for carrier in carriers[:CARRIERS]
        ]
        for placement in (Placement.SUFFIX, Placement.PREFIX)
    } | {"std scoring": [text for token in few for text in std_texts(token, carriers[:PAIRS])]}


def std_texts(token: Token, carriers: Sequence[str]) -> Iterator[str]:
    generator = np.random.default_rng(token.id)
    for carrier in carriers:
        words = len(carrier.split())
        path = [int(generator.integers(words + step + 1)) for step in range(COPIES)]
        for placement in Placement:
            yield from insert_as_text(token, carrier, placement, COPIES, path)


def best_of(ways: Sequence[Callable[[], list[list[int]]]], turns: int) -> list[float]:
    """The fewest seconds of each way, which must agree."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(turns):
        results = []
        for way, found in zip(ways, seconds, strict=True):
            gc.collect()
            started = time.perf_counter()
            results.append(way())
            found.append(time.perf_counter() - started)
        if any(result != results[0] for result in results):
            raise SystemExit("the cache and the whole tokenizer disagree")
    return [min(found) for found in seconds]


def compare(backend: Tokenizer, texts: Sequence[str], name: str, turns: int) -> Check:
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]

    def whole() -> list[list[int]]:
        return [own.ids for batch in batches for own in backend.encode_batch(batch, add_special_tokens=False)]

    def without_offsets() -> list[list[int]]:
        return [
            own.ids for batch in batches for own in backend.encode_batch_fast(batch, add_special_tokens=False)
        ]

    def cached() -> list[list[int]]:
        cache = WordCache.of(backend)
        return [ids for batch in batches for ids in cache.encode(batch)] if cache else whole()

    full, fast, ours = (
        seconds / len(texts) * 1e6 for seconds in best_of((whole, without_offsets, cached), turns)
    )
    return Check(
        f"{name}, {len(texts):,} texts",
        "fewer seconds than the whole tokenizer",
        f"{full / ours:.1f} times ({full:.1f} to {ours:.1f} microseconds a text; "
        f"{fast / ours:.1f} times of {fast:.1f} without offsets)",
        ours < full,
        {"whole": full, "without_offsets": fast, "cached": ours},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--tokenizers", type=Path, default=PUBLISHED, help="a folder of further tokenizers")
    parser.add_argument("--quick", action="store_true", help="few texts")
    parser.add_argument("--name", default="tokenization", help="name of the result file")
    arguments = parser.parse_args()
    size, turns = (200, 3) if arguments.quick else (2000, 5)
    folders = {arguments.model: resolve_model(arguments.model).location}
    folders |= {path.name: str(path) for path in sorted(arguments.tokenizers.glob("*/"))}
    carriers = load_sentences().texts
    chosen = np.random.default_rng(0).permutation(len(carriers))[: max(CARRIERS, PAIRS)]
    checks = []
    gc.disable()
    for name, folder in folders.items():
        adapted = HuggingFaceTokenizer(AutoTokenizer.from_pretrained(folder))
        backend = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        available = categorize(adapted).available
        order = np.random.default_rng(0).permutation(len(available))[:size]
        tokens = [available[k] for k in order.tolist()]
        for kind, texts in workloads(tokens, [carriers[k] for k in chosen.tolist()]).items():
            checks.append(compare(backend, texts, f"{name}, {kind}", turns))
    parallel = os.environ.get("TOKENIZERS_PARALLELISM", "true")
    write(checks, arguments.name, "cpu", tokenizers_parallelism=parallel)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
