"""Write the tables of an impact measurement as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stickytoken.impacts.conclusion import (
    CONDITIONS,
    EFFECTS,
    INTRUSION,
    cost_sentence,
    headed,
    settings_line,
)
from stickytoken.impacts.record import ImpactRecord, measured_kind
from stickytoken.visible_text import markdown as escaped
from stickytoken.visible_text import markdown_table

_CURVES = {
    "kind": "kind",
    "token": "token",
    "copies": "copies",
    "hits": "hits",
    "median_rank": "median rank",
    "copies_needed": "copies needed",
}
_SHOWN = {
    "effects": ("Tasks", EFFECTS),
    "conditions": ("Tokens", CONDITIONS),
    "intrusion": ("Intrusion", {"corpus": "corpus", **INTRUSION}),
    "intrusion_curves": ("Intrusion by token", _CURVES),
}


def impact_markdown(record: ImpactRecord, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables as Markdown.

    Args:
        record: record of the measurement.
        rows: rows of each table, by the stem of its file name.
    """
    kind = measured_kind(record)
    parts = [f"# What {kind} tokens cost {_cell(record.model)}", f"{settings_line(record.settings)}."]
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
