"""Methods that attribute a similarity to pairs of tokens: sums, deletion curves, copies of tokens, time.

python benchmarks/why.py MODEL --data shared/data --pairs 50 --name why

The model holds planted.json, as benchmarks/planted.py writes it. Every other pair has copies of a planted
token: two random sentences of STS-B whose cosine rises by 0.05 or more with four copies behind the first. The
others are pairs of STS-B. NAME.json gets the bars, NAME-methods.json the comparison.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks import RESULTS, Check, show, write
from stickytoken import Why, load_encoder, why
from stickytoken.attribution.result import AttributionMethod
from stickytoken.encoders.protocol import IdReader, require_ids

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


def main() -> None:
    """Attribute pairs by every method, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument(
        "--methods", nargs="+", default=list(AttributionMethod), choices=list(AttributionMethod)
    )
    parser.add_argument("--name", default="why")
    given = parser.parse_args()
    encoder = require_ids(load_encoder(given.model), "the benchmark")
    generator = np.random.default_rng(0)
    pairs = drawn_pairs(encoder, Path(given.model), given.data, given.pairs, generator)
    measured: list[dict[str, Any]] = []
    for texts in pairs:
        methods = {method: by_method(encoder, texts, method) for method in given.methods}
        measured.append(of_pair(encoder, texts, generator) | methods)
        # Written after every pair: a benchmark that is stopped has compared the methods on the same pairs.
        written(given, encoder.device, measured)
        print(f"{len(measured)} of {len(pairs)}", flush=True)
    show(compared(measured, given.methods), given.name)


def written(given: argparse.Namespace, device: str, measured: list[dict[str, Any]]) -> None:
    """Write what has been measured so far."""
    checks = compared(measured, given.methods)
    write(checks, given.name, device, model=Path(given.model).name, pairs=measured)
    table = {"columns": COLUMNS, "rows": rows_of(measured, given.methods)}
    path = RESULTS / f"{given.name}-methods.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def drawn_pairs(
    encoder: IdReader, model: Path, data: Path, count: int, generator: np.random.Generator
) -> list[Texts]:
    """Draw pairs of STS-B, every other one of unrelated sentences with copies that raise their cosine."""
    planted = json.loads((model / "planted.json").read_text(encoding="utf-8"))
    tokens = [row["token"] for row in planted if row["token"].isalpha()]
    lines = (data / "stsb" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(lines[place]) for place in generator.permutation(len(lines))]
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
    """Put copies behind a text."""
    first = " ".join([plain, *[token] * COPIES])
    one, other, before = (list(each.ids) for each in encoder.tokenize([first, second, plain]))
    rise = cosine(encoder, one, other) - cosine(encoder, before, other)
    return Texts(first, second, plain, token, rise)


def of_pair(encoder: IdReader, texts: Texts, generator: np.random.Generator) -> dict[str, Any]:
    """Return the cosine of a pair, and what it falls by without the tokens of random pairs."""
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
    """Attribute one pair by a method."""
    started, burnt = time.perf_counter(), time.process_time()
    found = why(encoder, texts.first, texts.second, method=method)
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
    """Return the falls without the tokens of the first pairs in one text, as means over both texts."""
    texts = (one, other)
    left: list[tuple[int, ...]] = []
    for count in PAIRS:
        for side in (0, 1):
            gone = {pair[side] for pair in pairs[:count]}
            kept = tuple(token_id for place, token_id in enumerate(texts[side]) if place not in gone)
            left.append(kept or tuple(texts[side]))  # nothing would be left: counted as no fall
    vectors = units(encoder, [tuple(one), tuple(other), *left])
    before = float(vectors[0] @ vectors[1])
    after = [float(vector @ vectors[1 - place % 2]) for place, vector in enumerate(vectors[2:])]
    return [before - (after[2 * place] + after[2 * place + 1]) / 2 for place in range(len(PAIRS))]


def attributed(encoder: IdReader, found: Why, texts: Texts) -> float:
    """Return the sum of everything that is attributed to the copies."""
    rows = found.matrix.sum(axis=1) + found.first_reference
    return float(rows[len(encoder.tokenize([texts.plain])[0].ids) :].sum())


def cosine(encoder: IdReader, first: list[int], second: list[int]) -> float:
    """Return the cosine of two texts given as ids."""
    one, other = units(encoder, [tuple(first), tuple(second)])
    return float(one @ other)


def units(encoder: IdReader, contents: list[tuple[int, ...]]) -> NDArray[np.float64]:
    """Return unit vectors."""
    vectors: NDArray[np.float64] = encoder.encode_ids(contents).astype(np.float64)
    found: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


COLUMNS = [
    "method",
    "fall of the cosine without the tokens of 1, 2, 3, 5 pairs",
    "the same for texts with copies",
    "larger fall than random, 5 pairs",
    "share of the rise attributed to copies",
    "largest error of the sum",
    "processor time of a pair",
]


def rows_of(measured: list[dict[str, Any]], methods: Sequence[str]) -> list[list[str]]:
    """Return a row per method, and the random baseline."""
    copies = [each for each in measured if each["token"] is not None]
    plain = [each for each in measured if each["token"] is None]
    rows = [
        [
            f"`{method}`",
            curve([each[method]["falls"] for each in plain]),
            curve([each[method]["falls"] for each in copies]),
            f"{beaten(measured, method):.0%}",
            f"{share(copies, method):.2f}",
            f"{largest_error(measured, method):.2%}",
            f"{np.median([each[method]['cpu_seconds'] for each in measured]):.1f} s",
        ]
        for method in methods
    ]
    random = [curve([each["random"] for each in some]) for some in (plain, copies)]
    return [*rows, ["random pairs", *random, "", "", "", ""]]


def curve(each: list[list[float]]) -> str:
    """Return the mean falls by number of pairs."""
    return ", ".join(f"{value:.3f}" for value in np.mean(each, axis=0)) if each else ""


def beaten(measured: list[dict[str, Any]], method: str) -> float:
    """Return the share of pairs whose cosine falls by more than with random pairs."""
    return float(np.mean([each[method]["falls"][FIVE] > each["random"][FIVE] for each in measured]))


def share(copies: list[dict[str, Any]], method: str) -> float:
    """Return what is attributed to copies, as a share of what they change."""
    rise = sum(each["rise"] for each in copies)
    return float(sum(each[method]["attributed"] for each in copies) / rise) if copies else float("nan")


def largest_error(measured: list[dict[str, Any]], method: str) -> float:
    """Return the largest error of the sum, as a share of the cosine."""
    return float(max(abs(each[method]["error"]) / max(abs(each["similarity"]), 1e-9) for each in measured))


def compared(measured: list[dict[str, Any]], methods: Sequence[str]) -> list[Check]:
    """Compare the measurements with the bars."""
    copies = [each for each in measured if each["token"] is not None]
    name = f"{len(measured)} pairs, {len(copies)} of them with copies"
    checks = []
    for method in methods:
        error, won, part = largest_error(measured, method), beaten(measured, method), share(copies, method)
        seconds = float(np.median([each[method]["cpu_seconds"] for each in measured]))
        each_share = [each[method]["attributed"] / each["rise"] for each in copies]
        checks += [
            Check(
                f"{method}: sum of all contributions, {name}",
                "within 2% of the cosine",
                f"largest error {error:.2%}",
                error <= 0.02,
                {},
            ),
            Check(
                f"{method}: without the tokens of the five strongest pairs in one text, against random pairs",
                "a larger fall in 90 %",
                f"{won:.0%}",
                won >= 0.9,
                {"draws": DRAWS},
            ),
            Check(
                f"{method}: share of the rise attributed to four copies",
                "0.8",
                f"{part:.2f}; median pair {np.median(each_share or [np.nan]):.2f}",
                part >= 0.8,
                {"pairs": each_share},
            ),
            Check(
                f"{method}: one pair, median processor time",
                "3 s on two cores",
                f"{seconds:.1f} s of one core",
                seconds <= 3,
                {"wall": float(np.median([each[method]["seconds"] for each in measured]))},
            ),
        ]
    return checks


if __name__ == "__main__":
    main()
