"""Does an explanation show what was planted, does attribution add up, and how long does it take?

python benchmarks/explain.py            # about 10 minutes on 2 CPU cores
python benchmarks/explain.py --only planted --carriers 10   # one half, with fewer texts

Writes explain.json (attribution, time) and explain-planted.json.

A planted model is all-MiniLM-L6-v2 with rows of its word embeddings overwritten; see planted.py. Take
the time on a machine that does nothing else: the wall clock is what counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from checks import Check, show, write
from planted import PLANTED, planted_encoder
from stickytoken.cli.output.progress import progress_bar
from stickytoken.corpora import load_sentences
from stickytoken.encoders import IdEncoder, analyze_vocabulary, load_encoder
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.tables import AREAS
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

MODEL = "all-MiniLM-L6-v2"
ORDINARY, PAIRS = 20, 20
CLS, COPIES = 101, 8
SHARES = ("attention", "pooling")


def explained(encoder: IdEncoder, tokens: list[int], settings: ExplainSettings) -> tuple[Explanation, float]:
    """An explanation, and the CPU seconds that it took."""
    started = time.process_time()
    with progress_bar() as progress:
        found = explain(encoder, tokens, settings=settings, progress=progress)
    return found, time.process_time() - started


def planted_check(found: Explanation, planted: list[int], truth: dict[int, float]) -> Check:
    """Is the attention or pooling share of every planted token outside the benign interval, from where on?"""
    rows: list[dict[str, Any]] = []
    for token in found.tokens:
        if token.token_id not in planted:
            continue
        shares = [each for each in token.findings if each.area in SHARES]
        rows.append(
            {
                "token": token.token,
                "planted_lift": truth.get(token.token_id),
                "shown": bool(shares),
                "findings": [
                    {"measure": each.measure, "begins": each.begins, "deviations": each.deviations}
                    for each in shares
                ],
                "other_areas": sorted({each.area for each in token.findings} - set(SHARES)),
            }
        )
    shown = sum(row["shown"] for row in rows)
    return Check(
        "planted tokens whose attention or pooling share leaves the benign interval",
        "all",
        f"{shown} of {len(rows)}",
        shown == len(rows),
        {"tokens": rows},
    )


def ordinary_check(found: Explanation, ordinary: list[int]) -> Check:
    """How often ordinary tokens leave the interval of one measure; each is at 5 % by design."""
    some = found.measures.filter(pl.col("token_id").is_in(ordinary))
    left = some.group_by("token_id", "measure").agg(pl.col("outside").any())
    by_measure = dict(left.group_by("measure").agg(pl.col("outside").mean()).sort("measure").iter_rows())
    share = float(np.mean(list(by_measure.values())))
    shares = left.filter("outside", pl.col("measure").is_in([*AREAS["attention"], *AREAS["pooling"]]))
    return Check(
        f"{len(ordinary)} ordinary tokens: share of measures that leave the benign interval",
        "at most 10 % (5 % by design)",
        f"{share:.1%}",
        share <= 0.1,
        {"by_measure": by_measure, "tokens_outside_in_attention_or_pooling": shares["token_id"].n_unique()},
    )


def completeness_check(encoder: IdEncoder, steps: int) -> Check:
    """Sums of token-by-token matrices against the similarity that the model gives.

    Half of the pairs have eight copies of [CLS] behind their first text: there the vector turns sharply.
    """
    texts = load_sentences().sample(2 * PAIRS, 0)
    integrator = JacobianIntegrator(inspector_of(encoder))
    contents = [encoder.tokenize([text])[0].ids for text in texts]
    contents = [
        (*ids, *[CLS] * COPIES) if place % 4 == 2 else ids  # the first text of every other pair
        for place, ids in enumerate(contents)
    ]
    # One part a text: the sum over tokens is the same, because derivatives are linear.
    units = [integrator.contributions(ids, [0] * len(ids), steps) for ids in contents]
    vectors = encoder.encode_ids(contents).astype(float)
    rows: list[dict[str, float]] = []
    for left, right in zip(range(0, len(texts), 2), range(1, len(texts), 2), strict=True):
        a, b = units[left], units[right]
        total = float((a.reference + a.parts.sum(axis=0)) @ (b.reference + b.parts.sum(axis=0)))
        tokens = float(a.parts.sum(axis=0) @ b.parts.sum(axis=0))
        similarity = float(vectors[left] @ vectors[right])
        rows.append({"similarity": similarity, "sum": total, "of_tokens_alone": tokens})
    worst = max(abs(row["sum"] / row["similarity"] - 1) for row in rows)
    return Check(
        f"sum of integrated Jacobians, reference included, against the similarity of {PAIRS} pairs, half of "
        "them with copies of [CLS]",
        "2 %",
        f"at most {worst:.2%} off",
        worst <= 0.02,
        {"steps": steps, "pairs": rows},
    )


def time_check(encoder: IdEncoder, token_id: int) -> Check:
    """One token with the default settings."""
    started = time.perf_counter()
    found, cpu = explained(encoder, [token_id], ExplainSettings())
    wall = time.perf_counter() - started
    return Check(
        f"one token, {found.carriers} carriers, default settings",
        "under 60 s on 2 cores",
        f"{wall:.0f} s, {cpu:.0f} CPU s",
        wall < 60,
        {"wall_seconds": wall, "cpu_seconds": cpu, "verdict": found.tokens[0].verdict},
    )


def attribution_and_time(device: str) -> list[Check]:
    """Checks on the packaged model."""
    encoder = load_encoder(MODEL, device=device)
    return [completeness_check(encoder, ExplainSettings().steps), time_check(encoder, CLS)]


def planted_and_ordinary(rows: Path, device: str, carriers: int) -> list[Check]:
    """Checks on the planted model."""
    model = planted_encoder(rows, 1.0, device)
    planted = [int(k) for k in np.load(rows)["token_ids"]]
    lifts = pl.read_csv(rows.with_suffix(".csv")).select("token_id", "planted_lift").iter_rows()
    available = [token.id for token in analyze_vocabulary(model).available if token.id not in planted]
    ordinary = sorted(int(k) for k in np.random.default_rng(0).choice(available, ORDINARY, replace=False))
    settings = ExplainSettings(carriers=carriers, attribution=False, confidence=0.95)
    found, _ = explained(model, [*planted, *ordinary], settings)
    return [planted_check(found, planted, dict(lifts)), ordinary_check(found, ordinary)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, default=PLANTED, help=".npz of rows; the .csv lies beside it")
    parser.add_argument("--carriers", type=int, default=50, help="texts a planted or ordinary token")
    parser.add_argument("--only", choices=("model", "planted"), help="one half of the checks")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.only != "model" and not arguments.rows.is_file():
        raise SystemExit(f"no planted rows {arguments.rows}: pass them with --rows, or --only model")
    halves: dict[str, list[Check]] = {}
    if arguments.only != "planted":
        halves["model"] = attribution_and_time(arguments.device)
    if arguments.only != "model":
        halves["planted"] = planted_and_ordinary(arguments.rows, arguments.device, arguments.carriers)
    for half, checks in halves.items():
        name = "explain" if half == "model" else "explain-planted"
        more = {} if half == "model" else {"carriers": arguments.carriers}
        write(checks, name, arguments.device, **more)
        show(checks, name)
    if not all(check.passed for checks in halves.values() for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
