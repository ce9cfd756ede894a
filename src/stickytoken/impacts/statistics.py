"""Edit texts under all conditions; compute differences, intervals and tests from their metrics. Pure.

Two sources of variation are kept apart. Intervals show how the numbers would vary with other queries, pairs
or texts (bootstrap over units, tokens fixed). The test shows whether sticky tokens cost more than matched
benign tokens (permutations within the matched sets, units fixed).
"""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.data.tasks import AnyTask
from stickytoken.encoders.protocol import WordEncoder, content_limit
from stickytoken.errors import InputError
from stickytoken.impacts.results import ImpactRecord, ImpactSettings, TokenRecord, measured_kind
from stickytoken.insertion import (
    Insertion,
    Joining,
    Placement,
    Probe,
    Token,
    TokenizedText,
    place_as_ids,
    place_as_text,
)
from stickytoken.validation import markdown as escaped, markdown_table

# Label of a token that the user named and no run calls sticky.
NAMED = "named"


class Kind(StrEnum):
    CLEAN = "clean"
    STICKY = "sticky"
    BENIGN = "benign"


@dataclass(frozen=True)
class Condition:
    kind: Kind
    tokens: tuple[Token, ...]  # whose copies all texts get: none (clean), one, or the several of a mixture
    repetition: int
    seed: int


def make_conditions(
    sticky: Sequence[Token], benign: Sequence[Token], seed: int, repetitions: int
) -> list[Condition]:
    groups: list[tuple[Kind, tuple[Token, ...]]] = [(Kind.CLEAN, ())]
    groups += [(Kind.STICKY, (token,)) for token in sticky]
    groups += [(Kind.BENIGN, (token,)) for token in benign]
    if len(sticky) > 1:
        groups += [(Kind.STICKY, tuple(sticky)), (Kind.BENIGN, tuple(benign[: len(sticky)]))]
    # The seed of a repetition puts the copies of every token into the same places.
    return [Condition(*group, each, seed + each) for group in groups for each in range(repetitions)]


def by_tokens(conditions: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    return [tuple(group) for _, group in groupby(conditions, lambda each: (each.kind, each.tokens))]


def gaps(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    generator = _generator(seed, text, "gaps")
    return tuple(int(generator.integers(words + step + 1)) for step in range(copies))


def turns(seed: int, text: str, kinds: int, copies: int) -> tuple[int, ...]:
    generator = _generator(seed, text, "turns")
    kind = generator.permutation(kinds)
    return tuple(int(kind[step]) for step in generator.permutation(copies) % kinds)


def _generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


@dataclass(frozen=True)
class Carrier:
    text: str  # cut only if copies are inserted as text
    content: TokenizedText
    cut: bool

    def clean(self, insertion: Insertion) -> Probe:
        return self.content.ids if insertion is Insertion.IDS else self.text


def prepare(
    encoder: WordEncoder, texts: Sequence[str], room: int, insertion: Insertion, name: str
) -> list[Carrier]:
    limit = content_limit(encoder)
    whole = [Carrier(*each, False) for each in zip(texts, encoder.tokenize(texts), strict=True)]
    if limit is None:
        return whole
    longest = limit - room
    if longest <= max((len(carrier.content.head) for carrier in whole), default=0):
        raise InputError(
            f"{name}: copies of {room} tokens leave no room for a text, because {encoder.name} reads {limit} "
            "tokens: use fewer copies"
        )

    def length(text: str) -> int:
        return len(encoder.tokenize([text])[0].ids)

    def cut(carrier: Carrier) -> Carrier:
        if len(carrier.content.ids) <= longest:
            return carrier
        if insertion is Insertion.IDS:
            left, words = longest - len(carrier.content.head), list[tuple[int, ...]]()
            for word in carrier.content.words:
                words.append(word[: max(0, left)])
                left -= len(word)
            kept = TokenizedText(carrier.content.head, tuple(filter(None, words)))
            return Carrier(carrier.text, kept, True)
        # The number of ids grows with the number of words.
        ends = [0, *(match.end() for match in re.finditer(r"\S+", carrier.text))]
        count = bisect_right(ends, longest, lo=1, key=lambda end: length(carrier.text[:end])) - 1
        text = carrier.text[: ends[count]]
        return Carrier(text, encoder.tokenize([text])[0], True)

    return [cut(carrier) for carrier in whole]


def probe(settings: ImpactSettings, carrier: Carrier, condition: Condition, copies: int) -> Probe:
    """Return what the encoder reads under a condition."""
    insertion, placement = settings.insertion, settings.placement
    if not condition.tokens or not copies:
        return carrier.clean(insertion)
    kinds = turns(condition.seed, carrier.text, len(condition.tokens), copies)
    tokens = [condition.tokens[kind] for kind in kinds]
    as_ids = insertion is Insertion.IDS
    words = len(carrier.content.words if as_ids else carrier.text.split())
    random = placement is Placement.RANDOM
    path = gaps(condition.seed, carrier.text, words, copies) if random else ()
    if as_ids:
        return place_as_ids([token.id for token in tokens], carrier.content, placement, path)
    spelled = [token.text.strip() for token in tokens]
    return place_as_text(spelled, carrier.text, placement, path, Joining.WORDS)


def needed_room(
    encoder: WordEncoder, conditions: Sequence[Condition], copies: int, insertion: Insertion
) -> int:
    if insertion is Insertion.IDS:
        return copies
    words = dict.fromkeys(token.text.strip() for each in conditions for token in each.tokens)
    spelled = encoder.tokenize([f"a {word} a" for word in words])
    around = len(encoder.tokenize(["a a"])[0].ids)
    return copies * max((len(ids.ids) - around for ids in spelled), default=1)


# Up to so many ways to choose one member of every set, the test counts all of them; else it draws some.
_MOST_COUNTED = 10_000
_DRAWS = 9_999
# Statistics that differ by less are equal: the order of summation changes them.
_ROUNDING = 1e-12


class Interval(NamedTuple):
    value: float | None
    low: float | None
    high: float | None


def bootstrap_samples(units: int, count: int, key: Sequence[int]) -> NDArray[np.intp]:
    return np.random.default_rng(list(key)).integers(units, size=(count, units))


def resampled(
    scores: Callable[[NDArray[np.intp] | None], NDArray[np.float64]], samples: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute scores on all units, then on each sample, which has the same units under every condition."""
    return np.array([scores(None), *(scores(sample) for sample in samples)])


def contrast_intervals(
    scores: NDArray[np.float64], contrasts: NDArray[np.float64], confidence: float
) -> list[Interval]:
    """Compute linear contrasts of scores with bootstrap percentile intervals (Efron 1979)."""
    points, *drawn = (combine(contrasts, row) for row in scores)
    columns = np.array(drawn).reshape(-1, len(contrasts)).T
    tail = (1 - confidence) / 2
    found = []
    for point, column in zip(points.tolist(), columns, strict=True):
        defined = column[~np.isnan(column)]
        # Samples on which the metric is undefined are left out; if most are, there is no interval.
        if np.isnan(point) or not len(defined) or len(defined) < len(column) / 2:
            found.append(Interval(present(point), None, None))
        else:
            found.append(Interval(point, *np.quantile(defined, [tail, 1 - tail]).tolist()))
    return found


def present(value: float) -> float | None:
    return value if math.isfinite(value) else None


def combine(contrasts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    spoiled = ((contrasts != 0) & np.isnan(scores)).any(axis=1)
    return np.where(spoiled, np.nan, contrasts @ np.nan_to_num(scores))


def compare(costs: NDArray[np.float64], key: Sequence[int]) -> tuple[float | None, float | None]:
    """Test whether sticky tokens cost more than the benign ones they are matched with.

    A permutation test within strata (Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses"):
    under the null hypothesis, any member of a matched set is as likely to be the sticky one. The statistic is
    the mean over sets of the difference between that member and the mean of the others.

    Args:
        costs: cost of each token, averaged over repetitions, which are not independent; one row per matched
            set, the sticky token first, shape (sets, members). Rows with NaN are left out.
        key: seed of the random choices, used if there are too many to count.

    Returns:
        The one-sided p-value and the effect size, the mean difference in standard deviations; None where
        undefined.
    """
    costs = costs[~np.isnan(costs).any(axis=1)]
    sets, members = costs.shape
    if not sets or members < 2:
        return None, None
    differences = (members * costs - costs.sum(axis=1, keepdims=True)) / (members - 1)
    own = differences[:, 0]
    spread = float(own.std(ddof=1)) if sets > 1 else 0.0
    effect_size = float(own.mean()) / spread if spread > _ROUNDING else None
    least = own.mean() - _ROUNDING
    if members**sets <= _MOST_COUNTED:
        sums = np.zeros(1)
        for row in differences:
            sums = np.add.outer(sums, row).ravel()
        return float((sums / sets >= least).mean()), effect_size
    chosen = np.random.default_rng(list(key)).integers(members, size=(_DRAWS, sets))
    means = differences[np.arange(sets), chosen].mean(axis=1)
    # The choice that was observed is one of them (Phipson and Smyth 2010).
    return float((1 + (means >= least).sum()) / (1 + _DRAWS)), effect_size


def corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values over tasks (Benjamini and Hochberg 1995); missing ones stay missing."""
    from scipy.stats import false_discovery_control

    known = [p_value for p_value in p_values if p_value is not None]
    found = iter(false_discovery_control(known).tolist() if known else ())
    return [None if p_value is None else next(found) for p_value in p_values]


COPIES = (0, 1, 2, 4, 8, 16, 32)
TOP = 10

Rows: TypeAlias = list[dict[str, Any]]


def task_rows(
    task: AnyTask,
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    settings: ImpactSettings,
    listed: Mapping[int, TokenRecord],
) -> dict[str, Rows]:
    key = [settings.seed, zlib.crc32(task.name.encode())]
    # A single unit has no interval.
    samples = bootstrap_samples(task.units, settings.resamples if task.units > 1 else 0, key)
    groups = by_tokens(conditions)
    firsts = [group[0] for group in groups]
    # Weights for the mean over the repetitions of each token, shape (groups, conditions).
    weights = np.vstack([[(each in group) / len(group) for each in conditions] for group in groups])
    clean, sticky, benign = (
        weights[[each.kind is kind and len(each.tokens) <= 1 for each in firsts]] for kind in Kind
    )
    means = np.vstack([each.mean(axis=0) for each in (clean, sticky, benign)])
    contrasts = np.vstack([means[0] - means[1], means[0] - means[2], means[2] - means[1]])
    rows: dict[str, Rows] = {"effects": [], "conditions": [], "scores": []}
    for metric in task.metrics:
        drawn = resampled(
            lambda sample, metric=metric: task.scores(metric, outcomes, sample),  # type: ignore[misc]
            samples,
        )
        values = drawn[0]
        its: dict[str, Any] = {"task": task.name, "metric": metric}
        for condition, value in zip(conditions, values.tolist(), strict=True):
            row = its | labels(condition, listed) | {"repetition": condition.repetition}
            rows["scores"].append(row | {"score": present(value)})
        scores = combine(weights, values).tolist()
        drops = contrast_intervals(drawn, clean - weights, settings.confidence)
        for condition, value, drop in zip(firsts, scores, drops, strict=True):
            row = its | labels(condition, listed) | {"score": present(value)}
            known = (None, None, None) if condition.kind is Kind.CLEAN else drop
            rows["conditions"].append(row | ends("drop", known))
        by_kind = [present(score) for score in combine(means, values).tolist()]
        intervals = contrast_intervals(drawn, contrasts, settings.confidence)
        # The first match of every sticky token comes first, then the second.
        costs = [combine(clean - kind, values).reshape(-1, len(sticky)) for kind in (sticky, benign)]
        p_value, effect_size = compare(np.vstack(costs).T, key)
        effect = its | {"layout": task.layout, "main": metric == task.metrics[0]}
        effect |= {"unit": task.unit, "units": task.units}
        effect |= zip(("clean", "sticky", "benign"), by_kind, strict=True)
        for name, interval in zip(("drop_sticky", "drop_benign", "difference"), intervals, strict=True):
            effect |= ends(name, interval)
        for name in ("drop_sticky", "drop_benign"):
            defined = effect[name] is not None and effect["clean"]
            effect[f"{name}_relative"] = effect[name] / effect["clean"] if defined else None
        effect |= {"tokens": len(sticky), "benign_tokens": len(benign)}
        rows["effects"].append(effect | {"effect_size": effect_size, "p_value": p_value})
    return rows


def intrusion_rows(
    corpus: str,
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    settings: ImpactSettings,
    listed: Mapping[int, TokenRecord],
    cut: int,
) -> dict[str, Rows]:
    """Sum up hits and ranks by number of copies; outcomes of shape (conditions, documents, 2 numbers)."""
    hits, ranks = np.split(outcomes, 2, axis=2)
    # How many copies bring half of the documents into at least one more top 10; None if 32 do not.
    half = (hits > hits[:, :, :1]).mean(axis=1) >= 0.5
    curves = [
        {"corpus": corpus, **labels(condition, listed), "copies": copies}
        | {"hits": float(hits[row, :, place].mean()), "median_rank": float(np.median(ranks[row, :, place]))}
        | {"copies_needed": COPIES[int(half[row].argmax())] if half[row].any() else None}
        for row, condition in enumerate(conditions)
        for place, copies in enumerate(COPIES)
    ]
    kinds = {kind.value: np.array([each.kind is kind for each in conditions]) for kind in list(Kind)[1:]}
    key, tail = [settings.seed, zlib.crc32(corpus.encode())], (1 - settings.confidence) / 2
    samples = bootstrap_samples(hits.shape[1], settings.resamples, key)
    middle, summary = np.median(ranks, axis=1), []
    for place, copies in enumerate(COPIES):
        above, below = (hits[own, :, place].mean(axis=0) for own in kinds.values())
        ratios = [_ratio(above[sample], below[sample]) for sample in samples]
        # An order statistic: some samples have no benign hit, so their ratio is infinite.
        interval = np.quantile(ratios, [tail, 1 - tail], method="inverted_cdf").tolist()
        row: dict[str, Any] = {"corpus": corpus, "copies": copies, "documents": hits.shape[1]}
        row |= {"hits_sticky": float(above.mean()), "hits_benign": float(below.mean())}
        row |= ends("ratio", tuple(map(present, (_ratio(above, below), *interval))))
        row |= {f"rank_{kind}": float(middle[own, place].mean()) for kind, own in kinds.items()}
        summary.append(row | {"cut": cut})
    return {"intrusion": summary, "intrusion_curves": curves}


def _ratio(sticky: NDArray[np.float64], benign: NDArray[np.float64]) -> float:
    above, below = float(sticky.mean()), float(benign.mean())
    if below > 0:
        return above / below
    return math.inf if above > 0 else math.nan


def labels(condition: Condition, listed: Mapping[int, TokenRecord]) -> dict[str, Any]:
    tokens = [listed[token.id] for token in condition.tokens]
    kind = NAMED if any(token.kind == NAMED for token in tokens) else condition.kind.value
    if len(tokens) == 1:
        return {"kind": kind, "token_id": tokens[0].token_id, "token": tokens[0].token}
    return {"kind": f"{kind} mixture" if tokens else kind, "token_id": None, "token": None}


def ends(name: str, interval: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))


# Columns of tables that people read.
EFFECTS = (
    *("task", "metric", "units", "clean", "sticky", "benign", "difference", "difference_low"),
    *("difference_high", "effect_size", "p_value", "q_value"),
)
CONDITIONS = ("task", "metric", "kind", "token", "score", "drop", "drop_low", "drop_high")
INTRUSION = (
    *("copies", "hits_sticky", "hits_benign", "ratio", "ratio_low", "ratio_high"),
    *("rank_sticky", "rank_benign"),
)
_HEADINGS = {"difference": "sticky - benign", "p_value": "p", "q_value": "q"} | {
    f"{column}_{kind}": f"{heading}{kind}"
    for column, heading in (("hits", ""), ("rank", "median rank, "))
    for kind in ("sticky", "benign")
}


def headed(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> tuple[list[str], list[list[Any]]]:
    headings = []
    for column in columns:
        end = column.rpartition("_")[2]
        heading = end if end in ("low", "high") else _HEADINGS.get(column, column.replace("_", " "))
        headings.append(heading.replace("sticky", measured))
    return headings, [[row[key] for key in columns] for row in rows]


def cost_sentence(effect: Mapping[str, Any], kind: str) -> str:
    name, metric = effect["task"], effect["metric"]
    if any(effect[each] is None for each in ("difference", "drop_sticky", "drop_benign", "clean")):
        return f"{name}: {metric} is not defined."
    costs = (
        f"{name}: {kind} tokens lower {metric} by {effect['drop_sticky']:.4f}, benign ones by "
        f"{effect['drop_benign']:.4f}, from {effect['clean']:.4f}"
    )
    return f"{costs}: {conclusion(effect, kind)}." if effect["main"] else f"{costs}."


def conclusion(effect: Mapping[str, Any], kind: str) -> str:
    tokens, p_value, q_value = effect["tokens"], effect["p_value"], effect["q_value"]
    benign = effect["benign_tokens"] // max(1, tokens)
    missing = benign_needed(tokens) - benign
    if missing > 0:
        each, more = ("", "would do") if tokens == 1 else (" each", "for each would do")
        measured = f"{tokens} {kind} {'token' if tokens == 1 else 'tokens'} with {benign} benign"
        lacking = f"{measured} {'one' if benign == 1 else 'ones'}{each}; {missing} more {more}"
        return f"too few tokens to conclude ({lacking})"
    if p_value is None:
        return "too few tokens to conclude (the metric is not defined for all of them)"
    values = {"p": p_value} | ({} if q_value in (None, p_value) else {"corrected over tasks q": q_value})
    shown = ", ".join(f"{name} {'< 0.001' if p < 0.001 else f'= {p:.2g}'}" for name, p in values.items())
    if effect["difference"] <= 0:
        return f"{kind} tokens are not shown to cost more ({shown})"
    decisive = p_value if q_value is None else q_value
    costs = f"{kind} tokens cost more" if decisive <= 0.05 else "no difference shown"
    return f"{costs} ({shown})"


def benign_needed(tokens: int) -> int:
    """Count the benign tokens that make the smallest p-value, (1 / (1 + benign)) ** tokens, 0.05 or less."""
    return math.ceil(math.pow(20, 1 / max(1, tokens))) - 1


def settings_line(settings: ImpactSettings) -> str:
    return (
        f"{settings.copies} copies, placement {settings.placement}, insertion {settings.insertion}, "
        f"side {settings.side}, repetitions: {settings.seeds}; {settings.confidence:.0%} intervals "
        "over queries, pairs or texts, for these tokens"
    )


_CURVES = ("kind", "token", "copies", "hits", "median_rank", "copies_needed")
_SHOWN = {
    "effects": ("Tasks", EFFECTS),
    "conditions": ("Tokens", CONDITIONS),
    "intrusion": ("Intrusion", ("corpus", *INTRUSION)),
    "intrusion_curves": ("Intrusion by token", _CURVES),
}


def impact_markdown(record: ImpactRecord, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    kind = measured_kind(record)
    parts = [f"# What {kind} tokens cost {_cell(record.model)}", f"{settings_line(record.measured_with())}."]
    main = [effect for effect in rows["effects"] if effect["main"]]
    if main:
        parts.append("\n".join(f"- {_cell(cost_sentence(effect, kind))}" for effect in main))
    for name, (title, columns) in _SHOWN.items():
        if rows[name]:
            headings, cells = headed(columns, rows[name], kind)
            parts += [f"## {title}", markdown_table(headings, (map(_cell, row) for row in cells))]
    parts += [f"- {_cell(note)}" for note in record.notes]
    failed = record.result.failed if record.result is not None else {}
    parts += [f"- not run: {_cell(task)}: {_cell(reason)}" for task, reason in failed.items()]
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else escaped(str(value))
