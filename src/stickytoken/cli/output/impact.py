"""Print an impact measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.options.output import Format
from stickytoken.cli.output.console import inform, print_json, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.impacts import Impact


def show_impact(impact: Impact, output_format: Format) -> None:
    """Print a measurement, as tables or as one JSON document."""
    if output_format is Format.JSON:
        print_json(impact.summary())
    else:
        _print(impact)


def _print(impact: Impact) -> None:
    from stickytoken.impacts.conclusion import (
        CONDITIONS,
        EFFECTS,
        INTRUSION,
        cost_sentence,
        headed,
        settings_line,
    )
    from stickytoken.impacts.record import measured_kind

    effects, kind = impact.effects, measured_kind(impact.record)
    main = effects.filter("main")
    for effect in main.iter_rows(named=True):
        print_line(cost_sentence(effect, kind))
    if not effects.is_empty():
        print_table("What copies cost", *headed(EFFECTS, effects.to_dicts(), kind))
        conditions = impact.conditions.join(
            main.select("task", "metric"), on=["task", "metric"], maintain_order="left"
        )
        print_table("By token, main metrics", *headed(CONDITIONS, conditions.to_dicts(), kind))
    intrusion = impact.intrusion.to_dicts()
    if intrusion:
        title = f"Queries with a random document of {intrusion[0]['corpus']} in their top 10, by copies in it"
        print_table(title, *headed(INTRUSION, intrusion, kind))
    print_line(settings_line(impact.record.settings))
    print_line(f"{impact.result.sequences:,} texts in {impact.result.seconds:,.0f} s; impact: {impact.path}")
    for task in impact.result.tasks:
        if task.cut:
            inform(
                f"note: {task.name}: {task.cut} of {task.texts} texts were truncated so that the copies fit, "
                "the same in every condition"
            )
    if intrusion and intrusion[0]["cut"]:
        cut, documents = intrusion[0]["cut"], intrusion[0]["documents"]
        inform(f"note: intrusion: {cut} of {documents} documents were truncated so that the copies fit")
    for note in impact.record.notes:
        inform(f"note: {note}")
