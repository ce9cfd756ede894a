"""Comparisons with a bar: printed, kept as a result file, and put into the documentation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stickytoken.measurement.resume import hardware, now, package_versions

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Check:
    """One comparison with a bar.

    Attributes:
        name: what is compared.
        bar: what it must reach.
        ours: what it reached.
        passed: whether it did.
        detail: the numbers behind it.
    """

    name: str
    bar: str
    ours: str
    passed: bool
    detail: dict[str, Any]


def show(checks: list[Check], name: str) -> None:
    """Print the checks as a table."""
    shown = Table(title=name, title_justify="left")
    for column in ("check", "bar", "ours", ""):
        shown.add_column(column, overflow="fold")
    for check in checks:
        shown.add_row(check.name, check.bar, check.ours, "ok" if check.passed else "MISSED")
    Console(width=140).print(shown)


def write(checks: list[Check], name: str, device: str, **more: Any) -> None:
    """Write the checks beside the other results."""
    document = {
        "date": now(),
        "hardware": hardware(device),
        "versions": package_versions(),
        **more,
        "checks": [asdict(check) for check in checks],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
