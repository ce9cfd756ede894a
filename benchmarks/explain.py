"""Does an explanation show what was planted, does attribution add up, and how long does it take?

Take times on a machine that does nothing else: the wall clock is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bench import MINILM, PLANTED, Results, commands, json_lines, units, write_json
from models import planted_encoder, planted_rows
from stickytoken import load_encoder, why as why_similar
from stickytoken.cli.console import progress_bar
from stickytoken.data import load_sentences
from stickytoken.encoders import analyze_vocabulary
from stickytoken.encoders.protocol import IdReader, require_ids
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.inspection import AttributionMethod, inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

ORDINARY, JACOBIANS = 20, 20  # tokens, pairs
CLS, CLS_COPIES = 101, 8
SHARES = ("attention", "pooling")


def planted(rows: Path = PLANTED, carriers: int = 50, device: str = "cpu") -> None:
    """Explanations of planted and of ordinary tokens, each in so many --carriers.

    --rows is an .npz with token_ids and rows, beside a .csv with token_id and planted_lift.
    """
    model = planted_encoder(rows, 1.0, device)
    truth = dict(pl.read_csv(rows.with_suffix(".csv")).select("token_id", "planted_lift").iter_rows())
    available = [token.id for token in analyze_vocabulary(model).available if token.id not in truth]
    ordinary = sorted(int(k) for k in np.random.default_rng(0).choice(available, ORDINARY, replace=False))
    settings = ExplainSettings(carriers=carriers, attribution=False, confidence=0.95)
    with progress_bar() as progress:
        found = explain(model, [*truth, *ordinary], settings=settings, progress=progress)
    results = Results("explain-planted", device, carriers=carriers)
    shown = {
        token.token: [(each.measure, each.begins, each.deviations) for each in shares]
        for token in found.tokens
        if token.token_id in truth and (shares := [each for each in token.findings if each.area in SHARES])
    }
    title = "planted tokens whose attention or pooling share leaves the benign interval"
    results.check(title, "all", f"{len(shown)} of {len(truth)}", len(shown) == len(truth), findings=shown)
    some = found.measures.filter(pl.col("token_id").is_in(ordinary))
    left = some.group_by("token_id", "measure").agg(pl.col("outside").any())
    by_measure = dict(left.group_by("measure").agg(pl.col("outside").mean()).sort("measure").iter_rows())
    share = float(np.mean(list(by_measure.values())))
    title = f"{len(ordinary)} ordinary tokens: share of measures that leave the benign interval"
    bar = "at most 10 % (5 % by design)"
    results.check(title, bar, f"{share:.1%}", share <= 0.1, by_measure=by_measure)
    results.finish()


def attribution(device: str = "cpu") -> None:
    """Sums of token-by-token matrices against the model's similarities, and the time of an explanation.

    Half of the pairs have eight copies of [CLS] behind their first text: there the vector turns sharply.
    """
    encoder, settings = load_encoder(MINILM, device=device), ExplainSettings()
    results = Results("explain", device)
    integrator = JacobianIntegrator(inspector_of(encoder))
    texts = encoder.tokenize(load_sentences().sample(2 * JACOBIANS, 0))
    # The first text of every other pair gets the copies.
    contents = [
        (*text.ids, *[CLS] * CLS_COPIES) if place % 4 == 2 else text.ids for place, text in enumerate(texts)
    ]
    # One part a text: the sum over tokens is the same, because derivatives are linear.
    parts = [integrator.contributions(ids, [0] * len(ids), settings.steps) for ids in contents]
    sums = [each.reference + each.parts.sum(axis=0) for each in parts]
    vectors = encoder.encode_ids(contents).astype(float)
    off = [
        abs(float(sums[place] @ sums[place + 1]) / float(vectors[place] @ vectors[place + 1]) - 1)
        for place in range(0, len(contents), 2)
    ]
    title = "sum of integrated Jacobians, reference included, against the similarity of"
    title = f"{title} {JACOBIANS} pairs, half of them with copies of [CLS]"
    results.check(title, "2 %", f"at most {max(off):.2%} off", max(off) <= 0.02, off=off)
    started, burnt = time.perf_counter(), time.process_time()
    found = explain(encoder, [CLS], settings=settings)
    wall, cpu = time.perf_counter() - started, time.process_time() - burnt
    title = f"one token, {found.carriers} carriers, default settings"
    results.check(title, "under 60 s on 2 cores", f"{wall:.0f} s, {cpu:.0f} CPU s", wall < 60)
    results.finish()


COPIES, RISE, DRAWS = 4, 0.05, 5
PAIRS = (1, 2, 3, 5)
COLUMNS = [
    "method",
    "fall of the cosine without the tokens of 1, 2, 3, 5 pairs",
    "the same for texts with copies",
    "larger fall than random, 5 pairs",
    "share of the rise attributed to copies",
    "largest error of the sum",
    "processor time of a pair",
]


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
    tokens = [row["token"] for row in planted_rows(Path(model)) if row["token"].isalpha()]
    lines = json_lines(data / "stsb" / "test.jsonl")
    rows, drawn = [lines[place] for place in generator.permutation(len(lines))], list[Texts]()
    while len(drawn) < pairs:
        first, second, token = rows.pop(), rows.pop(), str(generator.choice(tokens))
        plain = first["sentence1"]
        if len(drawn) % 2 == 0:
            drawn.append(Texts(plain, first["sentence2"], plain, None, 0.0))
            continue
        copied = " ".join([plain, *[token] * COPIES])
        one, other, before = ids_of(encoder, copied, second["sentence2"], plain)
        rise = cosine(encoder, one, other) - cosine(encoder, before, other)
        if rise >= RISE:
            drawn.append(Texts(copied, second["sentence2"], plain, token, rise))
    measured: list[dict[str, Any]] = []
    results = Results(name, encoder.device, model=Path(model).name, pairs=measured)
    for texts in drawn:
        found = {each: by_method(encoder, texts, each) for each in methods}
        measured.append(of_pair(encoder, texts, generator) | found)
        print(f"{len(measured)} of {len(drawn)}", flush=True)
        # Written after every pair: a benchmark that is stopped has compared the methods on the same pairs.
        results.checks.clear()
        write_json(
            f"{name}-methods", encoder.device, columns=COLUMNS, rows=compared(results, measured, methods)
        )
    results.finish(strict=False)


class Texts(NamedTuple):
    """A pair of texts, and what the copies in the first change; no token without copies."""

    first: str
    second: str
    plain: str
    token: str | None
    rise: float


def ids_of(encoder: IdReader, *texts: str) -> list[list[int]]:
    return [list(each.ids) for each in encoder.tokenize(texts)]


def cosine(encoder: IdReader, first: list[int], second: list[int]) -> float:
    one, other = units(encoder.encode_ids([tuple(first), tuple(second)]))
    return float(one @ other)


def of_pair(encoder: IdReader, texts: Texts, generator: np.random.Generator) -> dict[str, Any]:
    """The cosine of a pair, and what it falls by without the tokens of random pairs."""
    one, other = ids_of(encoder, texts.first, texts.second)
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
    rows = found.matrix.sum(axis=1) + found.first_reference
    return {
        "error": found.completeness_error,
        "falls": falls(encoder, one, other, strongest),
        "attributed": float(rows[len(ids_of(encoder, texts.plain)[0]) :].sum()),  # to the copies
        **cost,
    }


def falls(encoder: IdReader, one: list[int], other: list[int], pairs: list[tuple[int, int]]) -> list[float]:
    """The falls without the tokens of the first pairs in one text, as means over both texts."""
    texts = (one, other)
    left: list[tuple[int, ...]] = []
    for count in PAIRS:
        for side in (0, 1):
            gone = {pair[side] for pair in pairs[:count]}
            kept = tuple(token_id for place, token_id in enumerate(texts[side]) if place not in gone)
            left.append(kept or tuple(texts[side]))  # nothing would be left: counted as no fall
    vectors = units(encoder.encode_ids([tuple(one), tuple(other), *left]))
    after = [float(vector @ vectors[1 - place % 2]) for place, vector in enumerate(vectors[2:])]
    before = float(vectors[0] @ vectors[1])
    return [before - float(mean) for mean in np.reshape(after, (len(PAIRS), 2)).mean(axis=1)]


def compared(results: Results, measured: list[dict[str, Any]], methods: Sequence[str]) -> list[list[str]]:
    """Check the measurements; return a row per method, and one of the random baseline."""
    copies = [each for each in measured if each["token"] is not None]
    plain = [each for each in measured if each["token"] is None]

    def mean_falls(read: Callable[[dict[str, Any]], list[float]]) -> list[str]:
        return [
            ", ".join(f"{value:.3f}" for value in np.mean([read(each) for each in some], axis=0))
            if some
            else ""
            for some in (plain, copies)
        ]

    rows = []
    for method in methods:
        own = [each[method] for each in measured]
        error = max(abs(each[method]["error"]) / max(abs(each["similarity"]), 1e-9) for each in measured)
        name = f"{method}: sum of all contributions, {len(measured)} pairs, {len(copies)} of them with copies"
        results.check(name, "within 2% of the cosine", f"largest error {error:.2%}", error <= 0.02)
        won = np.mean([each[method]["falls"][-1] > each["random"][-1] for each in measured])
        name = f"{method}: without the tokens of the five strongest pairs in one text, against random pairs"
        results.check(name, "a larger fall in 90 %", f"{won:.0%}", won >= 0.9)
        shares = [each[method]["attributed"] / each["rise"] for each in copies] or [np.nan]
        share = float(np.average(shares, weights=[each["rise"] for each in copies] or None))
        ours = f"{share:.2f}; median pair {np.median(shares):.2f}"
        name = f"{method}: share of the rise attributed to four copies"
        results.check(name, "0.8", ours, share >= 0.8, pairs=shares)
        wall, cpu = (float(np.median([each[key] for each in own])) for key in ("seconds", "cpu_seconds"))
        name, ours = f"{method}: one pair, median processor time", f"{cpu:.1f} s of one core"
        results.check(name, "3 s on two cores", ours, cpu <= 3, wall=wall)
        curves = mean_falls(lambda each, method=method: each[method]["falls"])  # type: ignore[misc]
        rows.append([f"`{method}`", *curves, f"{won:.0%}", f"{share:.2f}", f"{error:.2%}", f"{cpu:.1f} s"])
    return [*rows, ["random pairs", *mean_falls(lambda each: each["random"]), "", "", "", ""]]


if __name__ == "__main__":
    commands(__doc__, attribution, planted, why)
