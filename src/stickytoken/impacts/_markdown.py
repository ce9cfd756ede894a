"""Write the tables of an impact measurement as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stickytoken.impacts.conclusion import cost_sentence
from stickytoken.impacts.record import ImpactRecord, measured_kind
from stickytoken.visible_text import markdown as escaped

_TITLES = {
    "effects": "Tasks",
    "conditions": "Tokens",
    "intrusion": "Intrusion",
    "intrusion_curves": "Intrusion by token",
}
_SHOWN = {
    "effects": (
        "task",
        "metric",
        "clean",
        "sticky",
        "benign",
        "difference",
        "difference_low",
        "difference_high",
        "effect_size",
        "p_value",
        "q_value",
    ),
    "conditions": ("task", "kind", "token", "score", "drop", "drop_low", "drop_high"),
    "intrusion": (
        "corpus",
        "copies",
        "hits_sticky",
        "hits_benign",
        "ratio",
        "ratio_low",
        "ratio_high",
        "rank_sticky",
        "rank_benign",
    ),
    "intrusion_curves": ("kind", "token", "copies", "hits", "median_rank", "copies_needed"),
}


def impact_markdown(record: ImpactRecord, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables as Markdown.

    Args:
        record: record of the measurement.
        rows: rows of each table, by the stem of its file name.
    """
    kind = measured_kind(record)
    parts = [f"# What {kind} tokens cost {_cell(record.model)}", _settings_line(record)]
    main = [effect for effect in rows["effects"] if effect["main"]]
    if main:
        parts.append("\n".join(f"- {_cell(cost_sentence(effect, kind))}" for effect in main))
    for name, columns in _SHOWN.items():
        if rows[name]:
            parts += [f"## {_TITLES[name]}", _table(columns, rows[name], kind)]
    parts += [f"- {_cell(note)}" for note in record.notes]
    failed = record.result.failed if record.result is not None else {}
    parts += [f"- not run: {_cell(task)}: {_cell(reason)}" for task, reason in failed.items()]
    return "\n\n".join(parts) + "\n"


def _settings_line(record: ImpactRecord) -> str:
    given = record.settings
    return (
        f"{given['copies']} copies, placement {given['placement']}, insertion {given['insertion']}, side "
        f"{given['side']}, repetitions: {given['seeds']}; {given['confidence']:.0%} intervals over queries, "
        "pairs or texts, for these tokens."
    )


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    headings = [column.replace("sticky", kind) for column in columns]
    lines = ["| " + " | ".join(headings) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else escaped(str(value))
