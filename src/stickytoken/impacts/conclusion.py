"""What an impact measurement shows, for every place that shows it: headings, and sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EFFECTS = {
    "task": "task",
    "metric": "metric",
    "units": "units",
    "clean": "clean",
    "sticky": "sticky",
    "benign": "benign",
    "difference": "sticky - benign",
    "difference_low": "low",
    "difference_high": "high",
    "effect_size": "effect size",
    "p_value": "p",
    "q_value": "q",
}
CONDITIONS = {
    "task": "task",
    "metric": "metric",
    "kind": "kind",
    "token": "token",
    "score": "score",
    "drop": "drop",
    "drop_low": "low",
    "drop_high": "high",
}
INTRUSION = {
    "copies": "copies",
    "hits_sticky": "sticky",
    "hits_benign": "benign",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "rank_sticky": "median rank, sticky",
    "rank_benign": "median rank, benign",
}


def headed(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> tuple[list[str], list[list[Any]]]:
    """Return the headings and the cells of a table.

    Args:
        columns: headings by column.
        rows: rows of the table.
        measured: what the measured tokens are called, if not sticky.
    """
    headings = [heading.replace("sticky", measured) for heading in columns.values()]
    return headings, [[row[key] for key in columns] for row in rows]


# Largest p-value, corrected over tasks, that is called a difference.
SIGNIFICANCE = 0.05
# So many equally likely choices are needed for a p-value of 0.05.
_LEAST_CHOICES = 20
_SMALLEST_SHOWN = 0.001


def cost_sentence(effect: Mapping[str, Any], kind: str) -> str:
    """Put the effect on one task into words.

    Only the test over tokens decides whether the tokens cost more. Intervals over queries, pairs or texts are
    about the tokens that were measured, and say nothing about other tokens of their kind. Metrics other than
    the main one restate its result, so their sentences have no conclusion.

    Args:
        effect: row of `effects.parquet`.
        kind: what the measured tokens are called.
    """
    name, metric = effect["task"], effect["metric"]
    if effect["difference"] is None:
        return f"{name}: {metric} is not defined."
    costs = (
        f"{name}: {kind} tokens lower {metric} by {effect['drop_sticky']:.4f}, benign ones by "
        f"{effect['drop_benign']:.4f}, from {effect['clean']:.4f}"
    )
    return f"{costs}: {conclusion(effect, kind)}." if effect["main"] else f"{costs}."


def conclusion(effect: Mapping[str, Any], kind: str) -> str:
    """Conclude from the test over tokens, or say how many benign tokens are missing.

    The test is one-sided: it never shows that tokens cost less.
    """
    tokens, benign = effect["tokens"], effect["benign_tokens"] // max(1, effect["tokens"])
    p_value, q_value = effect["p_value"], effect["q_value"]
    needed = benign_needed(tokens)
    if p_value is None or benign < needed:
        return f"too few tokens to conclude ({_lacking(tokens, benign, needed, kind)})"
    shown = f"p {_shown(p_value)}"
    if q_value is not None and q_value != p_value:
        shown += f", corrected over tasks q {_shown(q_value)}"
    decisive = p_value if q_value is None else q_value
    if decisive <= SIGNIFICANCE and effect["difference"] > 0:
        return f"{kind} tokens cost more ({shown})"
    if effect["difference"] > 0:
        return f"no difference shown ({shown})"
    return f"{kind} tokens are not shown to cost more ({shown})"


def settings_line(settings: Mapping[str, Any]) -> str:
    """Say how the texts were edited, and what the intervals are about."""
    return (
        f"{settings['copies']} copies, placement {settings['placement']}, insertion {settings['insertion']}, "
        f"side {settings['side']}, repetitions: {settings['seeds']}; {settings['confidence']:.0%} intervals "
        "over queries, pairs or texts, for these tokens"
    )


def benign_needed(tokens: int) -> int:
    """Return how many benign tokens each measured token needs for a p-value of 0.05.

    The smallest p-value of the test is (1 / (1 + benign)) ** tokens.
    """
    benign = 1
    while (1 + benign) ** max(1, tokens) < _LEAST_CHOICES:
        benign += 1
    return benign


def _lacking(tokens: int, benign: int, needed: int, kind: str) -> str:
    if benign >= needed:
        return "the metric is not defined for all of them"
    each, more = ("", "would do") if tokens == 1 else (" each", "for each would do")
    measured = f"{tokens} {kind} {'token' if tokens == 1 else 'tokens'} with {benign} benign"
    return f"{measured} {'one' if benign == 1 else 'ones'}{each}; {needed - benign} more {more}"


def _shown(value: float) -> str:
    return f"< {_SMALLEST_SHOWN}" if value < _SMALLEST_SHOWN else f"= {value:.2g}"
