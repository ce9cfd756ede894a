"""Print an impact measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stickytoken.cli.options.output import Format
from stickytoken.cli.output.console import inform, print_json, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.impacts import Impact

_EFFECTS = {
    "task": "task",
    "metric": "metric",
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
_CONDITIONS = {
    "task": "task",
    "kind": "kind",
    "token": "token",
    "score": "score",
    "drop": "drop",
    "drop_low": "low",
    "drop_high": "high",
}
_INTRUSION = {
    "copies": "copies",
    "hits_sticky": "sticky",
    "hits_benign": "benign",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "rank_sticky": "rank, sticky",
    "rank_benign": "rank, benign",
}


def show_impact(impact: Impact, output_format: Format) -> None:
    """Print a measurement, as tables or as one JSON document."""
    if output_format is Format.JSON:
        print_json(impact.summary())
    else:
        _print(impact)


def _print(impact: Impact) -> None:
    from stickytoken.impacts.conclusion import cost_sentence
    from stickytoken.impacts.record import measured_kind

    effects, kind = impact.effects, measured_kind(impact.record)
    main = effects.filter("main")
    for effect in main.iter_rows(named=True):
        print_line(cost_sentence(effect, kind))
    if not effects.is_empty():
        _table("What copies cost", _EFFECTS, effects.to_dicts(), kind)
        conditions = impact.conditions.join(
            main.select("task", "metric"), on=["task", "metric"], maintain_order="left"
        )
        _table("By token, main metrics", _CONDITIONS, conditions.to_dicts(), kind)
    intrusion = impact.intrusion.to_dicts()
    if intrusion:
        title = f"Queries with a random document of {intrusion[0]['corpus']} in their top 10, by copies in it"
        _table(title, _INTRUSION, intrusion, kind)
    settings = impact.record.settings
    print_line(
        f"{settings['copies']} copies, {settings['placement']} placement, {settings['side']} side, "
        f"repetitions: {settings['seeds']}; intervals of {settings['confidence']:.0%} over queries, pairs or "
        "texts, for these tokens"
    )
    print_line(f"{impact.result.sequences:,} texts in {impact.result.seconds:,.0f} s; impact: {impact.path}")
    for task in impact.result.tasks:
        if task.cut:
            inform(
                f"note: {task.name}: {task.cut} of {task.texts} texts were truncated so that the copies fit, "
                "in every condition alike"
            )
    if intrusion and intrusion[0]["cut"]:
        cut, documents = intrusion[0]["cut"], intrusion[0]["documents"]
        inform(f"note: intrusion: {cut} of {documents} documents were truncated so that the copies fit")
    for note in impact.record.notes:
        inform(f"note: {note}")


def _table(title: str, headings: Mapping[str, str], rows: list[dict[str, Any]], kind: str) -> None:
    shown = [heading.replace("sticky", kind) for heading in headings.values()]
    print_table(title, shown, [[row[column] for column in headings] for row in rows])
