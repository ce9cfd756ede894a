"""Show the results of a measurement as sentences, tables and Markdown. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stickytoken.impacts.results import Impact, ImpactRecord, PairedTestRecord, measured_kind
from stickytoken.settings.impact import Edits, ImpactSettings
from stickytoken.validation import markdown as escape_markdown, markdown_table

# Columns of the printed tables.
EFFECTS = (
    "task", "metric", "units", "clean", "sticky", "benign", "difference", "difference_low",
    "difference_high", "effect_size", "p_value", "q_value",
)  # fmt: skip
CONDITIONS = ("task", "metric", "kind", "token", "score", "drop", "drop_low", "drop_high")
_HEADINGS = {
    "difference": "sticky - benign",
    "p_value": "p",
    "q_value": "q",
}
# Maximum p-value, corrected for testing several tasks, at which sticky tokens are said to cost more than
# benign tokens.
_SIGNIFICANCE = 0.05

Row = Mapping[str, Any]


def headed(
    columns: Sequence[str], rows: Sequence[Row], measured: str = "sticky"
) -> tuple[list[str], list[list[Any]]]:
    """Return the headings and the cells of a table.

    Args:
        columns: the columns to show.
        rows: the rows of a result table.
        measured: word for the measured tokens in headings, as returned by `measured_kind`.
    """
    headings = []
    for column in columns:
        end_of_name = column.rpartition("_")[2]
        if end_of_name in ("low", "high"):  # enough, because an interval stands beside its value
            heading = end_of_name
        else:
            heading = _HEADINGS.get(column, column.replace("_", " "))
        headings.append(heading.replace("sticky", measured))
    cells = [[row[column] for column in columns] for row in rows]
    return headings, cells


def cost_sentence(effect: Row, kind: str) -> str:
    """Return a sentence that says how much the measured and the benign tokens lower a metric of a task.

    For the main metric, the sentence ends with the conclusion of the permutation test, unless no token was
    measured alone.

    Args:
        effect: a row of the table of effects.
        kind: word for the measured tokens, as returned by `measured_kind`.
    """
    name = effect["task"]
    metric = effect["metric"]
    needed = ("difference", "drop_sticky", "drop_benign", "clean")
    if any(effect[column] is None for column in needed):
        return f"{name}: {metric} is not defined."
    costs = (
        f"{name}: {kind} tokens lower {metric} by {effect['drop_sticky']:.4f}, benign ones by "
        f"{effect['drop_benign']:.4f}, from {effect['clean']:.4f}"
    )
    if effect["main"] and effect["tokens"]:
        return f"{costs}: {conclusion(effect, kind)}."
    return f"{costs}."


def conclusion(effect: Row, kind: str) -> str:
    """Return a phrase that says whether the measured tokens cost more than benign tokens, with the p-value.

    The arguments are those of `cost_sentence`.
    """
    tokens = effect["tokens"]
    benign_per_token = effect["benign_tokens"] // max(1, tokens)
    missing_per_token = benign_needed(tokens) - benign_per_token
    if missing_per_token > 0:
        benign = f"{benign_per_token} benign {'one' if benign_per_token == 1 else 'ones'}"
        if tokens == 1:
            lacking = f"1 {kind} token with {benign}; {missing_per_token} more would do"
        else:
            lacking = f"{tokens} {kind} tokens with {benign} each; {missing_per_token} more for each would do"
        return f"too few tokens to conclude ({lacking})"
    p_value = effect["p_value"]
    q_value = effect["q_value"]
    if p_value is None:
        return "too few tokens to conclude (the metric is not defined for all of them)"
    probabilities = f"p {_format_probability(p_value)}"
    if q_value is not None and q_value != p_value:  # with a single task, both are equal
        probabilities += f", corrected over tasks q {_format_probability(q_value)}"
    if effect["difference"] <= 0:
        return f"no sign that {kind} tokens cost more ({probabilities})"
    decisive = p_value if q_value is None else q_value
    finding = f"{kind} tokens cost more" if decisive <= _SIGNIFICANCE else "no difference shown"
    return f"{finding} ({probabilities})"


def _format_probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def benign_needed(tokens: int) -> int:
    """Return how many benign tokens per measured token are needed to reach a p-value of 0.05.

    The lowest possible p-value is (1 / (1 + benign)) ** tokens.
    """
    return math.ceil(math.pow(1 / _SIGNIFICANCE, 1 / max(1, tokens))) - 1


def paired_sentence(test: PairedTestRecord, kind: str) -> str:
    """Return a sentence with the results of the tests over tasks."""
    change = "lower" if test.difference >= 0 else "raise"
    return (
        f"over {test.tasks} tasks, {kind} tokens {change} the score by {abs(test.difference):.4f} more than "
        f"benign ones (paired t-test: t = {test.t:.3f}, one-sided p {_format_probability(test.p_value)}, "
        f"Cohen's d = {test.cohens_d:.3f}; permutation test: p {_format_probability(test.permutation_p)})."
    )


def settings_line(settings: ImpactSettings) -> str:
    """Return the settings of a measurement in words."""
    if settings.edits is Edits.PAPER:
        return (
            "edits of Chen et al. (2025): one token in each text, a copy for every ten words, in front or "
            f"behind; repetitions: {settings.seeds}; {settings.confidence:.0%} intervals over queries, pairs "
            "or texts, for these tokens"
        )
    return (
        f"{settings.copies} copies, placement {settings.placement}, insertion {settings.inserted_as}, "
        f"side {settings.side}, repetitions: {settings.seeds}; {settings.confidence:.0%} intervals "
        "over queries, pairs or texts, for these tokens"
    )


def token_sentences(impact: Impact) -> list[str]:
    """Return a sentence per token and task on how copies of the token change the score.

    A sentence also gives the mean change that copies of the token's matched benign tokens cause.
    """
    settings = impact.record.measured_with()
    sentences: list[str] = []
    if settings.edits is Edits.PAPER:  # no token was measured alone
        return sentences
    for token in impact.record.tokens:
        if token.kind == "benign":
            continue
        benign_ids = [other.token_id for other in impact.record.tokens if other.matched_to == token.token_id]
        sentences += _write_task_sentences(impact, token.token_id, benign_ids, settings)
    return sentences


def _write_task_sentences(
    impact: Impact, token_id: int, benign_ids: Sequence[int], settings: ImpactSettings
) -> Iterator[str]:
    """Yield a sentence on how copies of a token change the main metric of each task."""
    for effect in impact.effects.filter("main").iter_rows(named=True):
        conditions = impact.conditions.filter(task=effect["task"], metric=effect["metric"])
        (row,) = conditions.filter(token_id=token_id).iter_rows(named=True)
        start = f"{row['token']!r}, {effect['task']}:"
        if row["drop"] is None or effect["clean"] is None:
            yield f"{start} {effect['metric']} is not defined."
            continue
        verb = "leave"
        if row["drop"]:
            verb = "raise" if row["drop"] < 0 else "lower"
        sentence = (
            f"{start} {settings.copies} copies {verb} {effect['metric']} from {effect['clean']:.4f} to "
            f"{row['score']:.4f}"
        )
        if row["drop_low"] is not None:
            # A drop is a negative change, so the high end of the drop is the low end of the change.
            interval = f"{-row['drop_high']:+.4f} to {-row['drop_low']:+.4f}"
            sentence += f" (change {interval}, {settings.confidence:.0%} interval)"
        benign_drops = conditions.filter(conditions["token_id"].is_in(benign_ids))["drop"].drop_nulls()
        if len(benign_drops):
            matches = "its benign match"
            if len(benign_drops) > 1:
                matches = f"its {len(benign_drops)} benign matches"
            mean_change = -float(benign_drops.mean())  # type: ignore[arg-type]
            sentence += f"; copies of {matches} change it by {mean_change:+.4f}"
        yield f"{sentence}."


_TABLES = {
    "effects": ("Tasks", EFFECTS),
    "conditions": ("Tokens", CONDITIONS),
}


def impact_markdown(record: ImpactRecord, rows: Mapping[str, Sequence[Row]]) -> str:
    """Return the tables of a measurement as Markdown."""
    kind = measured_kind(record)
    sections = [f"# What {kind} tokens cost {escape_markdown(record.model)}"]
    sections.append(f"{settings_line(record.measured_with())}.")
    main = [effect for effect in rows["effects"] if effect["main"]]
    if main:
        sections.append("\n".join(f"- {escape_markdown(cost_sentence(effect, kind))}" for effect in main))
    if record.result is not None and record.result.paired_test is not None:
        sections.append(f"- {paired_sentence(record.result.paired_test, kind)}")
    for name, (title, columns) in _TABLES.items():
        if rows[name]:
            headings, cells = headed(columns, rows[name], kind)
            sections.append(f"## {title}")
            sections.append(markdown_table(headings, (map(_format_cell, row) for row in cells)))
    sections += [f"- {escape_markdown(note)}" for note in record.notes]
    failed = record.result.failed if record.result is not None else {}
    sections += [
        f"- not run: {escape_markdown(task)}: {escape_markdown(reason)}" for task, reason in failed.items()
    ]
    return "\n\n".join(sections) + "\n"


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    return escape_markdown(str(value))
