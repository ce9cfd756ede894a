"""Does an explanation show what was planted, does attribution add up, and how long does it take?

python benchmarks/explain.py attribution    # sums and time; minutes on 2 CPU cores
python benchmarks/explain.py planted        # planted and ordinary tokens
python benchmarks/explain.py why MODEL shared/data --pairs 50    # methods that attribute a similarity

A planted model is all-MiniLM-L6-v2 with rows of its word embeddings overwritten. Take times on a machine that
does nothing else: the wall clock is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench import (
    MINILM,
    PLANTED,
    Check,
    commands,
    finish,
    json_lines,
    planted_encoder,
    planted_rows,
    show,
    units,
    write,
    write_json,
)
from stickytoken import Why, load_encoder
from stickytoken import why as why_similar
from stickytoken.attribution.result import AttributionMethod
from stickytoken.cli.console import progress_bar
from stickytoken.data import load_sentences
from stickytoken.encoders import IdEncoder, analyze_vocabulary
from stickytoken.encoders.protocol import IdReader, require_ids
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.files import AREAS
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

ORDINARY, JACOBIANS = 20, 20  # tokens, pairs
CLS, CLS_COPIES = 101, 8
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
    texts = load_sentences().sample(2 * JACOBIANS, 0)
    integrator = JacobianIntegrator(inspector_of(encoder))
    contents = [encoder.tokenize([text])[0].ids for text in texts]
    contents = [
        (*ids, *[CLS] * CLS_COPIES) if place % 4 == 2 else ids  # the first text of every other pair
        for place, ids in enumerate(contents)
    ]
    # One part a text: the sum over tokens is the same, because derivatives are linear.
    parts = [integrator.contributions(ids, [0] * len(ids), steps) for ids in contents]
    vectors = encoder.encode_ids(contents).astype(float)
    rows: list[dict[str, float]] = []
    for left, right in zip(range(0, len(texts), 2), range(1, len(texts), 2), strict=True):
        a, b = parts[left], parts[right]
        total = float((a.reference + a.parts.sum(axis=0)) @ (b.reference + b.parts.sum(axis=0)))
        tokens = float(a.parts.sum(axis=0) @ b.parts.sum(axis=0))
        similarity = float(vectors[left] @ vectors[right])
        rows.append({"similarity": similarity, "sum": total, "of_tokens_alone": tokens})
    worst = max(abs(row["sum"] / row["similarity"] - 1) for row in rows)
    return Check(
        f"sum of integrated Jacobians, reference included, against the similarity of {JACOBIANS} pairs, half "
        "of them with copies of [CLS]",
        "2 %",
        f"at most {worst:.2%} off",
        worst <= 0.02,
        {"steps": steps, "pairs": rows},
    )


def time_check(encoder: IdEncoder, token_id: int) -> Check:
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


def attribution(device: str = "cpu", name: str = "explain") -> None:
    """Sums of attribution and the time of an explanation, on the packaged model."""
    encoder = load_encoder(MINILM, device=device)
    finish([completeness_check(encoder, ExplainSettings().steps), time_check(encoder, CLS)], name, device)


def planted(
    rows: Path = PLANTED, carriers: int = 50, device: str = "cpu", name: str = "explain-planted"
) -> None:
    """Explanations of planted and of ordinary tokens, each in so many --carriers."""
    model = planted_encoder(rows, 1.0, device)
    ids = [int(k) for k in np.load(rows)["token_ids"]]
    lifts = pl.read_csv(rows.with_suffix(".csv")).select("token_id", "planted_lift").iter_rows()
    available = [token.id for token in analyze_vocabulary(model).available if token.id not in ids]
    ordinary = sorted(int(k) for k in np.random.default_rng(0).choice(available, ORDINARY, replace=False))
    settings = ExplainSettings(carriers=carriers, attribution=False, confidence=0.95)
    found, _ = explained(model, [*ids, *ordinary], settings)
    checks = [planted_check(found, ids, dict(lifts)), ordinary_check(found, ordinary)]
    finish(checks, name, device, carriers=carriers)


def why(
    model: str, data: Path, pairs: int = 50, method: list[AttributionMethod] | None = None, name: str = "why"
) -> None:
    """Methods that attribute a similarity to pairs of tokens: sums, deletion curves, copies of tokens, time.

    MODEL is a folder with a planted.json. Every other pair has copies of a planted token: two random
    sentences of STS-B, in DATA/stsb/test.jsonl, whose cosine rises by 0.05 or more with four copies behind
    the first. The others are pairs of STS-B. NAME.json gets the bars, NAME-methods.json the comparison.
    """
    encoder = require_ids(load_encoder(model), "the benchmark")
    methods, generator = method or list(AttributionMethod), np.random.default_rng(0)
    drawn = drawn_pairs(encoder, Path(model), data, pairs, generator)
    measured: list[dict[str, Any]] = []
    for texts in drawn:
        found = {each: by_method(encoder, texts, each) for each in methods}
        measured.append(of_pair(encoder, texts, generator) | found)
        # Written after every pair: a benchmark that is stopped has compared the methods on the same pairs.
        checks, rows = compared(measured, methods)
        write(checks, name, encoder.device, model=Path(model).name, pairs=measured)
        write_json(f"{name}-methods", encoder.device, columns=COLUMNS, rows=rows)
        print(f"{len(measured)} of {len(drawn)}", flush=True)
    show(compared(measured, methods)[0], name)


COPIES, RISE, DRAWS = 4, 0.05, 5
PAIRS = (1, 2, 3, 5)
FIVE = PAIRS.index(5)
Cells = list[tuple[int, int]]


@dataclass(frozen=True)
class Texts:
    """A pair of texts, and what the copies in the first change; no token without copies."""

    first: str
    second: str
    plain: str
    token: str | None
    rise: float


def drawn_pairs(
    encoder: IdReader, model: Path, data: Path, count: int, generator: np.random.Generator
) -> list[Texts]:
    """Draw pairs of STS-B, every other one of unrelated sentences with copies that raise their cosine."""
    tokens = [row["token"] for row in planted_rows(model) if row["token"].isalpha()]
    lines = json_lines(data / "stsb" / "test.jsonl")
    rows = [lines[place] for place in generator.permutation(len(lines))]
    found: list[Texts] = []
    while len(found) < count:
        first, second, token = rows.pop(), rows.pop(), str(generator.choice(tokens))
        if len(found) % 2 == 0:
            found.append(Texts(first["sentence1"], first["sentence2"], first["sentence1"], None, 0.0))
            continue
        texts = with_copies(encoder, first["sentence1"], second["sentence2"], token)
        if texts.rise >= RISE:
            found.append(texts)
    return found


def with_copies(encoder: IdReader, plain: str, second: str, token: str) -> Texts:
    first = " ".join([plain, *[token] * COPIES])
    one, other, before = (list(each.ids) for each in encoder.tokenize([first, second, plain]))
    rise = cosine(encoder, one, other) - cosine(encoder, before, other)
    return Texts(first, second, plain, token, rise)


def of_pair(encoder: IdReader, texts: Texts, generator: np.random.Generator) -> dict[str, Any]:
    """The cosine of a pair, and what it falls by without the tokens of random pairs."""
    one, other = (list(each.ids) for each in encoder.tokenize([texts.first, texts.second]))
    cells = list(np.ndindex(len(one), len(other)))
    drawn = [[cells[place] for place in generator.permutation(len(cells))[: PAIRS[-1]]] for _ in range(DRAWS)]
    return {
        "token": texts.token,
        "rise": texts.rise,
        "similarity": cosine(encoder, one, other),
        "random": np.mean([falls(encoder, one, other, each) for each in drawn], axis=0).tolist(),
    }


def by_method(encoder: Any, texts: Texts, method: str) -> dict[str, Any]:
    started, burnt = time.perf_counter(), time.process_time()
    found = why_similar(encoder, texts.first, texts.second, method=method)
    cost = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - burnt}
    strongest = [(pair.first, pair.second) for pair in found.strongest(PAIRS[-1])]
    one, other = (
        [token_id for part in text.parts for token_id in part.token_ids]
        for text in (found.first, found.second)
    )
    return {
        "error": found.completeness_error,
        "falls": falls(encoder, one, other, strongest),
        "attributed": attributed(encoder, found, texts),
        **cost,
    }


def falls(encoder: IdReader, one: list[int], other: list[int], pairs: Cells) -> list[float]:
    """The falls without the tokens of the first pairs in one text, as means over both texts."""
    texts = (one, other)
    left: list[tuple[int, ...]] = []
    for count in PAIRS:
        for side in (0, 1):
            gone = {pair[side] for pair in pairs[:count]}
            kept = tuple(token_id for place, token_id in enumerate(texts[side]) if place not in gone)
            left.append(kept or tuple(texts[side]))  # nothing would be left: counted as no fall
    vectors = units(encoder.encode_ids([tuple(one), tuple(other), *left]))
    before = float(vectors[0] @ vectors[1])
    after = [float(vector @ vectors[1 - place % 2]) for place, vector in enumerate(vectors[2:])]
    return [before - (after[2 * place] + after[2 * place + 1]) / 2 for place in range(len(PAIRS))]


def attributed(encoder: IdReader, found: Why, texts: Texts) -> float:
    """The sum of everything that is attributed to the copies."""
    rows = found.matrix.sum(axis=1) + found.first_reference
    return float(rows[len(encoder.tokenize([texts.plain])[0].ids) :].sum())


def cosine(encoder: IdReader, first: list[int], second: list[int]) -> float:
    one, other = units(encoder.encode_ids([tuple(first), tuple(second)]))
    return float(one @ other)


COLUMNS = [
    "method",
    "fall of the cosine without the tokens of 1, 2, 3, 5 pairs",
    "the same for texts with copies",
    "larger fall than random, 5 pairs",
    "share of the rise attributed to copies",
    "largest error of the sum",
    "processor time of a pair",
]


def compared(measured: list[dict[str, Any]], methods: Sequence[str]) -> tuple[list[Check], list[list[str]]]:
    """The measurements beside the bars, and a row per method with one of the random baseline."""

    def mean_falls(pairs: list[list[float]]) -> str:
        return ", ".join(f"{value:.3f}" for value in np.mean(pairs, axis=0)) if pairs else ""

    copies = [each for each in measured if each["token"] is not None]
    plain = [each for each in measured if each["token"] is None]
    name = f"{len(measured)} pairs, {len(copies)} of them with copies"
    checks, rows = [], []
    for method in methods:
        error = max(abs(each[method]["error"]) / max(abs(each["similarity"]), 1e-9) for each in measured)
        won = np.mean([each[method]["falls"][FIVE] > each["random"][FIVE] for each in measured])
        rise = sum(each["rise"] for each in copies) or np.nan
        share = float(sum(each[method]["attributed"] for each in copies) / rise)
        shares = [each[method]["attributed"] / each["rise"] for each in copies]
        wall, cpu = (
            float(np.median([each[method][key] for each in measured])) for key in ("seconds", "cpu_seconds")
        )
        strongest = "without the tokens of the five strongest pairs in one text, against random pairs"
        middle = f"{share:.2f}; median pair {np.median(shares or [np.nan]):.2f}"
        sums, copied = f"sum of all contributions, {name}", "share of the rise attributed to four copies"
        for title, bar, ours, passed, detail in (
            (sums, "within 2% of the cosine", f"largest error {error:.2%}", error <= 0.02, {}),
            (strongest, "a larger fall in 90 %", f"{won:.0%}", won >= 0.9, {"draws": DRAWS}),
            (copied, "0.8", middle, share >= 0.8, {"pairs": shares}),
            (
                "one pair, median processor time",
                "3 s on two cores",
                f"{cpu:.1f} s of one core",
                cpu <= 3,
                {"wall": wall},
            ),
        ):
            checks.append(Check(f"{method}: {title}", bar, ours, bool(passed), detail))
        curves = [mean_falls([each[method]["falls"] for each in some]) for some in (plain, copies)]
        rows.append([f"`{method}`", *curves, f"{won:.0%}", f"{share:.2f}", f"{error:.2%}", f"{cpu:.1f} s"])
    random = [mean_falls([each["random"] for each in some]) for some in (plain, copies)]
    return checks, [*rows, ["random pairs", *random, "", "", "", ""]]


if __name__ == "__main__":
    commands(__doc__, attribution, planted, why)
