"""Measures whether explanations are right: planted tokens, attributions, and time.

The command `times` takes a minute and needs no data. The command `planted` needs an .npz with planted rows.
The command `why` needs a model with planted tokens, and the pairs of sentences of STS-B. Run a command with
`python benchmarks/explain.py COMMAND`, on a machine that does nothing else, since some results are wall-clock
times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from bench import MINILM, PLANTED, Results, commands, json_lines, units, write_json
from models import planted_encoder, planted_rows
from stickytoken import analyze_vocabulary, load_encoder, why as attribute_similarity
from stickytoken.cli.console import progress_bar
from stickytoken.encoders.protocol import IdEncoder, IdReader, require_ids
from stickytoken.explanation import ExplainSettings, Explanation, explain

# Number of ordinary tokens in the command `planted`.
ORDINARY = 20
# The token [CLS] of the packaged model.
CLS = 101
# The areas of findings that should show what was planted.
SHARES = ("attention", "pooling")


def planted(rows: Path = PLANTED, carriers: int = 50, device: str = "cpu") -> None:
    """Check that explanations find something unusual in planted tokens, but not in ordinary ones.

    Each token is explained in so many --carriers. --rows is an .npz with the arrays token_ids and rows. A
    .csv of the same name, with the column token_id, must be in the same folder.
    """
    model = planted_encoder(rows, 1.0, device)
    planted_table = pl.read_csv(rows.with_suffix(".csv"))
    planted_ids = list(dict.fromkeys(planted_table["token_id"].to_list()))
    available = analyze_vocabulary(model).available
    candidates = [token.id for token in available if token.id not in planted_ids]
    sampled = np.random.default_rng(0).choice(candidates, ORDINARY, replace=False)
    ordinary_ids = sorted(int(token_id) for token_id in sampled)
    settings = ExplainSettings(carriers=carriers, attribution=False, confidence=0.95)
    with progress_bar() as progress:
        explanation = explain(model, [*planted_ids, *ordinary_ids], settings=settings, progress=progress)
    results = Results("explain-planted", device, carriers=carriers)
    check_planted(results, explanation, planted_ids)
    check_ordinary(results, explanation, ordinary_ids)
    results.finish()


def check_planted(results: Results, explanation: Explanation, planted_ids: Sequence[int]) -> None:
    """Record for how many planted tokens a share of attention or pooling is unusual; all must be."""
    findings_of_tokens = {}
    for token in explanation.tokens:
        share_findings = [finding for finding in token.findings if finding.area in SHARES]
        if token.token_id in planted_ids and share_findings:
            findings_of_tokens[token.token] = [
                (finding.measure, finding.begins, finding.deviations) for finding in share_findings
            ]
    results.check(
        "planted tokens whose attention or pooling share leaves the benign interval",
        "all",
        f"{len(findings_of_tokens)} of {len(planted_ids)}",
        len(findings_of_tokens) == len(planted_ids),
        findings=findings_of_tokens,
    )


def check_ordinary(results: Results, explanation: Explanation, ordinary_ids: Sequence[int]) -> None:
    """Record how often a measure of an ordinary token is outside the benign interval, in any layer."""
    rows = explanation.measures.filter(pl.col("token_id").is_in(ordinary_ids))
    by_token = rows.group_by("token_id", "measure").agg(pl.col("outside").any())
    by_measure = by_token.group_by("measure").agg(pl.col("outside").mean()).sort("measure")
    shares = dict(by_measure.iter_rows())
    mean_share = float(np.mean(list(shares.values())))
    results.check(
        f"{len(ordinary_ids)} ordinary tokens: share of measures that leave the benign interval",
        "at most 10 % (5 % by design)",
        f"{mean_share:.1%}",
        mean_share <= 0.1,
        by_measure=shares,
    )


def times(device: str = "cpu") -> None:
    """Time an explanation."""
    encoder = load_encoder(MINILM, device=device)
    results = Results("explain", device)
    wall_started = time.perf_counter()
    cpu_started = time.process_time()
    explanation = explain(encoder, [CLS])
    wall_seconds = time.perf_counter() - wall_started
    cpu_seconds = time.process_time() - cpu_started
    results.check(
        f"one token, {explanation.carriers} carriers, default settings",
        "under 60 s on 2 cores",
        f"{wall_seconds:.0f} s, {cpu_seconds:.0f} CPU s",
        wall_seconds < 60,
    )
    results.finish()


# Number of copies of a planted token at the end of a text.
COPIES = 4
# Minimum rise of the cosine that the copies must cause for a pair to be used.
RISE = 0.05
# Number of random orders of token pairs whose deletion is averaged.
DRAWS = 5
# Numbers of token pairs to delete, in ascending order.
PAIRS = (1, 2, 3, 5)
COLUMNS = [
    "pairs",
    "fall of the cosine without the tokens of 1, 2, 3, 5 pairs",
    "the same for texts with copies",
]


class TextPair(NamedTuple):
    """A pair of texts, and what the copies in the first one change.

    Attributes:
        first: the first text, with the copies if there are any.
        second: the second text.
        plain: the first text without copies.
        token: the token that is copied; None without copies.
        rise: how much the copies raise the cosine; 0 without copies.
    """

    first: str
    second: str
    plain: str
    token: str | None
    rise: float


# The measurements of a pair of texts: the entries of `measure_pair` and `measure_attribution`.
PairRow: TypeAlias = dict[str, Any]


def why(model: str, data: Path, pairs: int = 50, name: str = "why") -> None:
    """Measure how well the similarity of two texts is attributed to pairs of tokens.

    Measured are the error of the sum, the fall of the cosine if the strongest pairs are deleted, the
    contributions of copied tokens, and the time.

    MODEL is the folder of a model with planted tokens, and must contain planted.json. DATA is a folder with
    stsb/test.jsonl (STS-B). Half of the text --pairs are pairs of STS-B. Each of the others consists of two
    random sentences of STS-B, with four copies of a planted token at the end of the first sentence. Only
    pairs whose cosine the copies raise by at least 0.05 are used.

    The checks are written to NAME.json, and the falls to NAME-falls.json.
    """
    encoder = require_ids(load_encoder(model), "the benchmark")
    generator = np.random.default_rng(0)
    tokens = [row["token"] for row in planted_rows(Path(model)) if row["token"].isalpha()]
    text_pairs = draw_text_pairs(encoder, data / "stsb" / "test.jsonl", tokens, pairs, generator)
    rows: list[PairRow] = []
    results = Results(name, encoder.device, model=Path(model).name, pairs=rows)
    for text_pair in text_pairs:
        measured = measure_pair(encoder, text_pair, generator)
        rows.append(measured | measure_attribution(encoder, text_pair))
        print(f"{len(rows)} of {len(text_pairs)}", flush=True)
        # The results are written after every pair, so that those of a benchmark that is stopped are not lost.
        results.checks.clear()
        check_attributions(results, rows)
        table = [
            ["strongest", *falls_in_words(rows, "falls")],
            ["random", *falls_in_words(rows, "random")],
        ]
        write_json(f"{name}-falls", encoder.device, columns=COLUMNS, rows=table)
    results.finish(strict=False)


def draw_text_pairs(
    encoder: IdReader, path: Path, tokens: Sequence[str], count: int, generator: np.random.Generator
) -> list[TextPair]:
    """Return random pairs of texts, beginning with a pair without copies; every other pair has copies.

    Args:
        encoder: the model.
        path: test.jsonl of STS-B.
        tokens: planted tokens, as words.
        count: number of pairs.
        generator: source of the random draws.
    """
    lines = json_lines(path)
    remaining = [lines[index] for index in generator.permutation(len(lines))]
    text_pairs: list[TextPair] = []
    while len(text_pairs) < count:
        first_line = remaining.pop()
        second_line = remaining.pop()
        token = str(generator.choice(tokens))
        plain = first_line["sentence1"]
        needs_copies = len(text_pairs) % 2 == 1
        if not needs_copies:
            text_pairs.append(TextPair(plain, first_line["sentence2"], plain, None, 0.0))
            continue
        with_copies = " ".join([plain, *[token] * COPIES])
        second = second_line["sentence2"]
        ids_with_copies, second_ids, plain_ids = ids_of(encoder, with_copies, second, plain)
        rise = cosine(encoder, ids_with_copies, second_ids) - cosine(encoder, plain_ids, second_ids)
        if rise >= RISE:
            text_pairs.append(TextPair(with_copies, second, plain, token, rise))
    return text_pairs


def ids_of(encoder: IdReader, *texts: str) -> list[list[int]]:
    """Return the token ids of each text, without special tokens."""
    return [list(text.ids) for text in encoder.tokenize(texts)]


def cosine(encoder: IdReader, first: list[int], second: list[int]) -> float:
    """Return the cosine of two texts, given as token ids."""
    first_vector, second_vector = units(encoder.encode_ids([tuple(first), tuple(second)]))
    return float(first_vector @ second_vector)


def measure_pair(encoder: IdReader, text_pair: TextPair, generator: np.random.Generator) -> PairRow:
    """Return the cosine of a pair of texts, and its falls without the tokens of random token pairs.

    Returns:
        The copied token, the rise of the cosine that its copies cause, the cosine, and the mean falls: one
        for each number in `PAIRS`.
    """
    first_ids, second_ids = ids_of(encoder, text_pair.first, text_pair.second)
    first_tokens = [(token_id,) for token_id in first_ids]
    second_tokens = [(token_id,) for token_id in second_ids]
    token_pairs = list(np.ndindex(len(first_ids), len(second_ids)))
    falls_of_draws = []
    for _ in range(DRAWS):
        order = generator.permutation(len(token_pairs))
        random_pairs = [token_pairs[index] for index in order[: PAIRS[-1]]]
        falls_of_draws.append(falls(encoder, first_tokens, second_tokens, random_pairs))
    return {
        "token": text_pair.token,
        "rise": text_pair.rise,
        "similarity": cosine(encoder, first_ids, second_ids),
        "random": np.mean(falls_of_draws, axis=0).tolist(),
    }


def measure_attribution(encoder: IdEncoder, text_pair: TextPair) -> PairRow:
    """Attribute the similarity of a pair of texts to pairs of tokens, and measure the result.

    Returns:
        The error of the sum, the falls of the cosine without the tokens of the strongest pairs, the
        contribution of the copies, and the wall-clock and processor seconds.
    """
    wall_started = time.perf_counter()
    cpu_started = time.process_time()
    attribution = attribute_similarity(encoder, text_pair.first, text_pair.second)
    wall_seconds = time.perf_counter() - wall_started
    cpu_seconds = time.process_time() - cpu_started
    strongest = [(pair.first, pair.second) for pair in attribution.strongest(PAIRS[-1])]
    # A part is one token, or a span of tokens in a long text.
    first_parts = [part.token_ids for part in attribution.first.parts]
    second_parts = [part.token_ids for part in attribution.second.parts]
    contributions = attribution.matrix.sum(axis=1)
    # The copies are at the end of the first text.
    plain_length = len(ids_of(encoder, text_pair.plain)[0])
    part_ends = np.cumsum([len(part) for part in first_parts])
    part_starts = np.concatenate([[0], part_ends[:-1]])
    has_only_copies = part_starts >= plain_length
    return {
        "error": float(attribution.matrix.sum(dtype=float)) - attribution.similarity,
        "falls": falls(encoder, first_parts, second_parts, strongest),
        "attributed": float(contributions[has_only_copies].sum()),
        "seconds": wall_seconds,
        "cpu_seconds": cpu_seconds,
    }


def falls(
    encoder: IdReader,
    first_parts: Sequence[tuple[int, ...]],
    second_parts: Sequence[tuple[int, ...]],
    pairs: Sequence[tuple[int, ...]],
) -> list[float]:
    """Return how much the cosine of two texts falls without the parts of the first pairs.

    The parts are deleted in one of the texts only. A fall is the mean over both texts.

    Args:
        encoder: the model.
        first_parts: token ids of each part of the first text.
        second_parts: token ids of each part of the second text.
        pairs: pairs of part indices, one in each text, in the order in which they are deleted.

    Returns:
        One fall for each number of pairs in `PAIRS`.
    """
    sides = (first_parts, second_parts)
    texts = [joined(parts) for parts in sides]
    shortened_texts = []
    for count in PAIRS:
        for side, parts in enumerate(sides):
            deleted = {pair[side] for pair in pairs[:count]}
            remaining_ids = joined([part for index, part in enumerate(parts) if index not in deleted])
            # If no token remains, the text is left as it is, which counts as no fall.
            shortened_texts.append(remaining_ids or texts[side])
    vectors = units(encoder.encode_ids([*texts, *shortened_texts]))
    cosine_before = float(vectors[0] @ vectors[1])
    cosines_after = []
    for index, vector in enumerate(vectors[2:]):
        # Shortened texts alternate between the first and the second text.
        other_side = 1 - index % 2
        cosines_after.append(float(vector @ vectors[other_side]))
    mean_cosines = np.reshape(cosines_after, (len(PAIRS), 2)).mean(axis=1)
    return [cosine_before - float(mean_cosine) for mean_cosine in mean_cosines]


def joined(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the token ids of all parts in one tuple."""
    return tuple(itertools.chain.from_iterable(parts))


def check_attributions(results: Results, rows: Sequence[PairRow]) -> None:
    """Record the checks of all pairs of texts so far."""
    rows_with_copies = [row for row in rows if has_copies(row)]

    # An error relative to the cosine would say little, because the cosines of random sentences are near zero.
    largest_error = max(abs(row["error"]) for row in rows)
    name = f"sum of all contributions, {len(rows)} pairs, {len(rows_with_copies)} of them with copies"
    results.check(
        name, "within 0.01 of the cosine", f"largest error {largest_error:.4f}", largest_error <= 0.01
    )

    falls_more_than_random = [row["falls"][-1] > row["random"][-1] for row in rows]
    larger_share = np.mean(falls_more_than_random)
    name = "without the tokens of the five strongest pairs in one text, against random pairs"
    results.check(name, "a larger fall in 90 %", f"{larger_share:.0%}", larger_share >= 0.9)

    # Until a pair with copies has been measured, the share is not a number.
    shares = [row["attributed"] / row["rise"] for row in rows_with_copies] or [np.nan]
    rises = [row["rise"] for row in rows_with_copies] or None
    share = float(np.average(shares, weights=rises))
    ours = f"{share:.2f}; median pair {np.median(shares):.2f}"
    results.check("share of the rise attributed to four copies", "0.8", ours, share >= 0.8, pairs=shares)

    wall_seconds = float(np.median([row["seconds"] for row in rows]))
    cpu_seconds = float(np.median([row["cpu_seconds"] for row in rows]))
    ours = f"{cpu_seconds:.1f} s of one core"
    results.check(
        "one pair, median processor time", "3 s on two cores", ours, cpu_seconds <= 3, wall=wall_seconds
    )


def has_copies(row: PairRow) -> bool:
    """Return whether the first text of a pair has copies of a planted token."""
    return row["token"] is not None


def falls_in_words(rows: Sequence[PairRow], key: str) -> tuple[str, str]:
    """Return the mean falls of the pairs without copies, and those of the pairs with copies, in words.

    Args:
        rows: the measured pairs of texts.
        key: name of the entry with the falls of a pair, one for each number in `PAIRS`.

    Returns:
        The means separated by commas, for each kind of pair; an empty string if there are no pairs of a kind.
    """
    without_copies = [row[key] for row in rows if not has_copies(row)]
    with_copies = [row[key] for row in rows if has_copies(row)]
    return mean_in_words(without_copies), mean_in_words(with_copies)


def mean_in_words(curves: list[list[float]]) -> str:
    """Return the mean of curves, position by position, separated by commas; empty if there are none."""
    if not curves:
        return ""
    return ", ".join(f"{value:.3f}" for value in np.mean(curves, axis=0))


if __name__ == "__main__":
    commands(__doc__, planted, times, why)
