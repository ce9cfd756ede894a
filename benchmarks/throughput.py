"""Texts a second of the engine, beside SentenceTransformer.encode and beside the paper's loops.

python benchmarks/throughput.py            # alone and beside another job; 12 minutes on 2 CPU cores
python benchmarks/throughput.py --quick    # a minute, on few texts
python benchmarks/throughput.py --only loops --name throughput_loops   # beside the paper's loops, 10 minutes
python benchmarks/throughput.py --only sets --name throughput_sets   # also beside another job, five minutes
python benchmarks/throughput.py --only sets --model all-mpnet-base-v2 --name throughput_mpnet
python benchmarks/throughput.py --device cuda

Everything is measured in one run on one machine, turn by turn, and the best of each counts: on a
shared machine only ratios within a run mean something.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from checks import Check, show, write
from stickytoken.corpora.choice import choose_corpus
from stickytoken.encoders import Encoder, IdEncoder, load_encoder
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.insertion import Token
from stickytoken.measurement.engine import compute_shard
from stickytoken.measurement.stage import Shard, cut_into_shards, ignore_progress
from stickytoken.methods.std.formulas import ScoringStage
from stickytoken.methods.std.plan import make_plan, scoring_stage
from stickytoken.methods.std.settings import StdSettings
from stickytoken.vocabulary import categorize
from throughput_sets import other_job, set_checks

BATCH_SIZES = (32, 64, 128)
# Rows, columns in and out of the matrix products whose rate counts as the machine's.
MATRIX = (4096, 384, 1536)
# Texts of a shard of a run.
SHARD_TEXTS = 8192


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def matrix_peak(device: str, repeats: int = 20) -> dict[str, float]:
    """Highest rate of float32 matrix products that libraries here reach, in GFLOP a second."""
    rows, inner, columns = MATRIX
    left, right = torch.rand(rows, inner, device=device), torch.rand(inner, columns, device=device)
    products: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(left, right)}
    if device == "cpu":
        packed = torch.ops.mkldnn._reorder_linear_weight(right.T.contiguous())
        a, b = left.numpy(), right.numpy()
        products["oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")
        products["numpy"] = lambda: a @ b
    best = {name: min(timed(product, device) for _ in range(repeats)) for name, product in products.items()}
    return {name: 2 * rows * inner * columns / seconds / 1e9 for name, seconds in best.items()}


def timed(work: Callable[[], object], device: str) -> float:
    def synchronous() -> None:
        work()
        if device != "cpu":
            torch.cuda.synchronize()

    return seconds_of(synchronous)


def operations(model: SentenceTransformer, lengths: Sequence[int]) -> float:
    """Floating point operations of the linear layers and the attention on texts of these lengths."""
    linear = sum(
        module.in_features * module.out_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "pooler" not in name
    )
    transformer: Any = model[0]
    config = transformer.model.config
    attention = 2 * config.num_hidden_layers * config.hidden_size
    sizes = np.asarray(lengths, dtype=np.float64)
    return float((2 * linear * sizes + 2 * attention * sizes**2).sum())


def paper_loops(model: SentenceTransformer, stage: ScoringStage, tokens: Sequence[Token]) -> int:
    """Every pair, placement and number of copies by itself, as loops write it down.

    Returns:
        Texts that were encoded.
    """
    count = 0
    for token in tokens:
        probes = texts_of(stage, [token])
        for start in range(0, len(probes), 8):
            model.encode(probes[start : start + 8], show_progress_bar=False)
        count += len(probes)
    return count


@dataclass(frozen=True)
class Measured:
    """Seconds of each way on the same texts, turn by turn.

    Attributes:
        engine: of the engine.
        library: of SentenceTransformer.encode, by batch size.
        peaks: rates of matrix products.
    """

    engine: list[float]
    library: dict[int, list[float]]
    peaks: list[dict[str, float]]

    @property
    def best_batch(self) -> int:
        """The batch size at which the library is fastest."""
        return min(self.library, key=lambda batch: min(self.library[batch]))


def measure(
    encoder: Encoder, model: SentenceTransformer, stage: ScoringStage, tokens: Sequence[Token], turns: int
) -> Measured:
    """Measure the engine and the library on the same tokens."""
    shard = Shard(0, tuple(tokens))
    texts = texts_of(stage, shard.tokens)
    measured = Measured([], {batch: [] for batch in BATCH_SIZES}, [])
    for _ in range(turns):
        measured.peaks.append(matrix_peak(encoder.device))
        measured.engine.append(seconds_of(lambda: compute_shard(stage, shard, encoder)))
        for batch, found in measured.library.items():
            found.append(seconds_of(partial(model.encode, texts, batch_size=batch, show_progress_bar=False)))
    return measured


@dataclass(frozen=True)
class Scoring:
    """Seconds of std scoring in two ways, slice by slice of tokens.

    Attributes:
        tokens: number of tokens of each slice.
        engine: of the engine.
        loops: of the paper's loops.
    """

    tokens: list[int]
    engine: list[float]
    loops: list[float]


def measure_scoring(
    encoder: Encoder, model: SentenceTransformer, stage: ScoringStage, tokens: Sequence[Token]
) -> Scoring:
    """Measure the engine and the loops in turn, on slices as large as the shards of a run."""
    found = Scoring([], [], [])
    for shard in cut_into_shards(tokens, stage.probes_per_token, SHARD_TEXTS):
        found.tokens.append(len(shard.tokens))
        found.engine.append(seconds_of(partial(compute_shard, stage, shard, encoder)))
        found.loops.append(seconds_of(partial(paper_loops, model, stage, shard.tokens)))
    return found


def texts_of(stage: ScoringStage, tokens: Sequence[Token]) -> list[str]:
    return [probe for token in tokens for probe in stage.probes(token) if isinstance(probe, str)]


def ratio_check(measured: Measured, texts: int, condition: str, bar: float) -> Check:
    """Texts a second of the engine beside those of the library."""
    batch = measured.best_batch
    ours, theirs = texts / min(measured.engine), texts / min(measured.library[batch])
    return Check(
        f"engine against SentenceTransformer.encode, {texts:,} texts of std scoring, {condition}",
        f"at least {bar} times the texts a second",
        f"{ours / theirs:.2f} times ({ours:.0f} to {theirs:.0f} with batches of {batch})",
        ours / theirs >= bar,
        {"engine": measured.engine, "library": {str(k): v for k, v in measured.library.items()}},
    )


def rate_checks(measured: Measured, operations_done: float) -> list[Check]:
    """The engine's arithmetic beside what matrix products of this machine reach."""
    rate = operations_done / min(measured.engine) / 1e9
    peak = {name: max(found[name] for found in measured.peaks) for name in measured.peaks[0]}
    best = max(peak.values())
    return [
        Check(
            "arithmetic rate, of a float32 matrix product by torch.mm in this run",
            "at least 85 %",
            f"{rate / peak['torch.mm']:.0%} ({rate:.0f} of {peak['torch.mm']:.0f} GFLOP/s)",
            rate / peak["torch.mm"] >= 0.85,
            {"rate": rate, "peaks": peak},
        ),
        Check(
            "arithmetic rate, of the fastest matrix product in this run",
            "none: what is still to be had",
            f"{rate / best:.0%} ({rate:.0f} of {best:.0f} GFLOP/s)",
            True,
            {},
        ),
    ]


def scoring_check(scoring: Scoring, available: int) -> Check:
    """What std scoring of the whole vocabulary would take, in both ways."""
    share = available / sum(scoring.tokens) / 3600
    engine, loops = sum(scoring.engine) * share, sum(scoring.loops) * share
    ratios = [theirs / ours for theirs, ours in zip(scoring.loops, scoring.engine, strict=True)]
    return Check(
        f"std scoring of {available:,} tokens, judged by {sum(scoring.tokens)}: paper's loops against engine",
        "at least 3 times as long",
        f"{loops / engine:.2f} times ({loops:.1f} to {engine:.1f} hours; "
        f"{min(ratios):.2f} to {max(ratios):.2f} by slice)",
        loops / engine >= 3,
        asdict(scoring),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="few texts, each way once")
    parser.add_argument("--name", default="throughput", help="name of the result file")
    parser.add_argument(
        "--only",
        choices=tuple(MEASUREMENTS),
        default="scoring",
        help="texts of std scoring, the same by the paper's loops, or sets of texts",
    )
    arguments = parser.parse_args()
    model = SentenceTransformer(resolve_model(arguments.model).location, device=arguments.device)
    checks = MEASUREMENTS[arguments.only](model, arguments)
    write(checks, arguments.name, str(model.device))
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


def of_sets(model: SentenceTransformer, arguments: argparse.Namespace) -> list[Check]:
    return set_checks(model, Path(arguments.model).name, 2 if arguments.quick else 5)


def of_scoring(model: SentenceTransformer, arguments: argparse.Namespace) -> list[Check]:
    count, turns = (8, 1) if arguments.quick else (34, 3)
    encoder = load_encoder(model)
    stage, tokens, _ = prepared(encoder, count)
    alone = measure(encoder, model, stage, tokens, turns)
    with other_job():
        beside = measure(encoder, model, stage, tokens, turns)
    texts = texts_of(stage, tokens)
    # Equal texts are computed once; [CLS] and [SEP] stand around each.
    lengths = [len(own.ids) + 2 for own in encoder.tokenize(list(dict.fromkeys(texts)))]
    return [
        ratio_check(alone, len(texts), "alone", 2.0),
        ratio_check(beside, len(texts), "beside a job of two threads", 1.2),
        *rate_checks(alone, operations(model, lengths)),
    ]


def of_loops(model: SentenceTransformer, arguments: argparse.Namespace) -> list[Check]:
    encoder = load_encoder(model)
    stage, tokens, available = prepared(encoder, 4 if arguments.quick else 500)
    return [scoring_check(measure_scoring(encoder, model, stage, tokens), available)]


def prepared(encoder: IdEncoder, count: int) -> tuple[ScoringStage, list[Token], int]:
    """A stage whose kernels are built, random tokens to score, and the number of all tokens."""
    available = categorize(encoder.tokenizer).available
    settings = StdSettings(sentences=500)
    plan = make_plan(encoder, settings, choose_corpus(None, None), ignore_progress)
    order = np.random.default_rng(0).permutation(len(available))[: count + 2].tolist()
    first, tokens = [available[k] for k in order[:2]], [available[k] for k in order[2:]]
    stage = scoring_stage(
        encoder, settings, plan, available, sorted([*first, *tokens], key=lambda own: own.id)
    )
    compute_shard(stage, Shard(0, tuple(first)), encoder)
    return stage, tokens, len(available)


MEASUREMENTS = {"scoring": of_scoring, "loops": of_loops, "sets": of_sets}


if __name__ == "__main__":
    main()
