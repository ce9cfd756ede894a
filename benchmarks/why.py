"""Attributions of similarities to pairs of tokens: completeness, deletions, copies of sticky tokens, time.

python benchmarks/why.py MODEL --data shared/data --pairs 50 --name why

The model holds planted.json, as benchmarks/planted.py writes it, for pairs with copies.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checks import Check, show, write
from stickytoken import Why, load_encoder, why
from stickytoken.encoders.protocol import IdReader, require_ids

COPIES, TOP, DRAWS = 4, 5, 10
# A smaller rise than this has no share worth the name.
RISE = 0.02


def main() -> None:
    """Attribute pairs, half of them with copies of a planted token, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--name", default="why")
    given = parser.parse_args()
    encoder = require_ids(load_encoder(given.model), "the benchmark")
    rows = json.loads((Path(given.model) / "planted.json").read_text(encoding="utf-8"))
    planted = [row["token"] for row in rows if row["token"].isalpha()]
    lines = (given.data / "stsb" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    generator = np.random.default_rng(0)
    measured = []
    for number, place in enumerate(generator.permutation(len(lines))[: given.pairs]):
        pair = json.loads(lines[place])
        # Copies are put into unrelated texts: similar ones have nothing to rise to.
        other = json.loads(str(generator.choice(lines))) if number % 2 else pair
        token = str(generator.choice(planted)) if number % 2 else None
        measured.append(of_pair(encoder, pair["sentence1"], other["sentence2"], token, generator))
    checks = compared(measured)
    show(checks, given.name)
    write(checks, given.name, encoder.device, model=Path(given.model).name, pairs=measured)


def of_pair(
    encoder: Any, first: str, second: str, token: str | None, generator: np.random.Generator
) -> dict[str, Any]:
    """Measure one pair, with copies of a token behind the first text or without."""
    text = first if token is None else " ".join([first, *[token] * COPIES])
    started, burnt = time.perf_counter(), time.process_time()
    found = why(encoder, text, second)
    cost = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - burnt}
    order = [(pair.first, pair.second) for pair in found.strongest(TOP)]
    falls = np.array([fall(encoder, found, order, side) for side in (0, 1)])
    cells = list(np.ndindex(found.matrix.shape))
    drawn = [
        [cells[place] for place in generator.choice(len(cells), min(TOP, len(cells)), replace=False)]
        for _ in range(DRAWS)
    ]
    random = np.array([[fall(encoder, found, each, side) for side in (0, 1)] for each in drawn])
    result: dict[str, Any] = {
        "similarity": found.similarity,
        "error": found.completeness_error,
        "fall": float(falls.mean()),
        "random_fall": float(random.mean()),
        **cost,
    }
    if token is not None:
        result |= {"token": token, **shares(encoder, found, first, second)}
    return result


def fall(encoder: IdReader, found: Why, pairs: list[tuple[int, int]], side: int) -> float:
    """Return what the cosine falls by if the tokens of pairs are deleted from one of the texts."""
    texts = (found.first, found.second)
    gone = {pair[side] for pair in pairs}
    kept = [part.token_ids for place, part in enumerate(texts[side].parts) if place not in gone]
    if not kept:
        return found.similarity  # nothing is left to be similar
    other = [part.token_ids for part in texts[1 - side].parts]
    return found.similarity - cosine(encoder, [flat(kept), flat(other)])


def shares(encoder: IdReader, found: Why, first: str, second: str) -> dict[str, float]:
    """Return the rise by the copies, and what the matrix attributes to them."""
    before = cosine(encoder, [list(each.ids) for each in encoder.tokenize([first, second])])
    beginning = len(encoder.tokenize([first])[0].ids)
    copies = found.matrix.sum(axis=1) + found.first_reference
    return {"rise": found.similarity - before, "attributed": float(copies[beginning:].sum())}


def flat(parts: list[tuple[int, ...]]) -> list[int]:
    """Join the ids of parts."""
    return [token_id for part in parts for token_id in part]


def cosine(encoder: IdReader, contents: list[list[int]]) -> float:
    """Return the cosine of two texts given as ids."""
    vectors: NDArray[np.float64] = encoder.encode_ids(contents).astype(np.float64)
    one, other = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float(one @ other)


def compared(measured: list[dict[str, Any]]) -> list[Check]:
    """Compare the measurements with the bars."""
    errors = [abs(each["error"]) / max(abs(each["similarity"]), 1e-9) for each in measured]
    beaten = float(np.mean([each["fall"] > each["random_fall"] for each in measured]))
    seconds = float(np.median([each["cpu_seconds"] for each in measured]))
    risen = [each for each in measured if each.get("rise", 0.0) >= RISE]
    share = sum(each["attributed"] for each in risen) / sum(each["rise"] for each in risen) if risen else 0.0
    count = len(measured)
    return [
        Check(
            f"completeness, {count} pairs of STS-B, half of them with copies",
            "within 2 % of the cosine",
            f"median {np.median(errors):.2%}, largest {max(errors):.2%}",
            max(errors) <= 0.02,
            {"absolute": max(abs(each["error"]) for each in measured)},
        ),
        Check(
            "deleting the tokens of the five strongest pairs from one text, against five random pairs",
            "a larger fall in 90 %",
            f"{beaten:.0%} of {count}",
            beaten >= 0.9,
            {"draws": DRAWS},
        ),
        Check(
            f"share of the rise attributed to four copies, {len(risen)} pairs that rise by {RISE} or more",
            "0.8",
            f"{share:.2f}",
            bool(risen) and share >= 0.8,
            {},
        ),
        Check(
            "one pair, median processor time",
            "3 s on two cores",
            f"{seconds:.1f} s of one core",
            seconds <= 3,
            {"wall": float(np.median([each["seconds"] for each in measured]))},
        ),
    ]


if __name__ == "__main__":
    main()
