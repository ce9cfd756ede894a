"""A report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from stickytoken.attribution.result import Part, Why, sentences
from stickytoken.errors import InputError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.reports import content as facts
from stickytoken.reports.content import RunContent, cards, filled_columns, flagged_rows
from stickytoken.reports.explanation_section import explained_tokens
from stickytoken.reports.figure_set import report_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure, template
from stickytoken.reports.templating import environment, glossary, json_for_html, number, packaged
from stickytoken.scanning.results import Scan, basis, headline

# Only the latest scans are shown, and of each the worst documents.
_MOST_SCANS = 3
_MOST_DOCUMENTS = 20
_MOST_SOURCES = 20
_MOST_WORDS = 3


@dataclass(frozen=True)
class ShownDocument:
    """A document with findings.

    Attributes:
        id: Its id.
        place: File and line, where it is in a file.
        found: What was found, in words.
        severity: How much the copies do; None where that is not known.
        effect: The same in numbers; empty where it is not known.
        pieces: Text around the findings, each piece with whether it was found.
    """

    id: str
    place: str | None
    found: str
    severity: str | None
    effect: str
    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class ShownScan:
    """A scan in a report.

    Attributes:
        name: Name of the collection.
        headline: How many documents have findings, and how many matter.
        basis: What effects were compared with.
        sources: Counts by source; no rows without sources.
        documents: The worst documents.
        more: Documents with findings that are not shown.
        skipped: How many records could not be read.
    """

    name: str
    headline: str
    basis: str | None
    sources: DataTable
    documents: tuple[ShownDocument, ...]
    more: int
    skipped: int


def shown_scans(content: RunContent) -> list[ShownScan]:
    """Return the latest scans of a run folder."""
    return [_shown(scan) for scan in content.scans[:_MOST_SCANS]]


def _shown(scan: Scan) -> ShownScan:
    worst = scan.worst.head(_MOST_DOCUMENTS)
    return ShownScan(
        name=scan.record.documents,
        headline=headline(scan),
        basis=basis(scan),
        sources=_sources(scan),
        documents=tuple(_document(row) for row in worst.iter_rows(named=True)),
        more=scan.result.found - len(worst),
        skipped=scan.result.skipped,
    )


def _document(row: Mapping[str, Any]) -> ShownDocument:
    words = [
        f"{each['text']} \N{MULTIPLICATION SIGN} {each['copies']}" for each in row["words"][:_MOST_WORDS]
    ]
    if len(row["words"]) > _MOST_WORDS:
        words.append("\N{HORIZONTAL ELLIPSIS}")
    place = row["path"]
    if place is not None and row["line"] is not None:
        place = f"{place}, line {row['line']}"
    effect = ""
    if row["effect"] is not None:
        up = "" if row["moves_up"] is None else f", moves up for {row['moves_up']:.0%} of the queries"
        effect = f"effect {number(row['effect'], 2)} SD{up}"
    return ShownDocument(
        id=row["id"],
        place=place,
        found=f"{', '.join(words)}; {row['share']:.0%} of the text",
        severity=row["severity"],
        effect=effect,
        pieces=tuple((each["text"], each["found"]) for each in row["excerpt"]),
    )


def _sources(scan: Scan) -> DataTable:
    rows = [each for each in scan.result.sources if each.found][:_MOST_SOURCES]
    graded = scan.result.matter is not None
    return DataTable(
        ("source", "documents", "with findings", *(("that matter",) if graded else ())),
        tuple(
            (each.source or "(none)", each.documents, each.found, *((each.matter,) if graded else ()))
            for each in rows
        ),
    )


# More rows would make the file slow to open; tokens.parquet has them all.
_MOST_ROWS = 1000


def run_page(content: RunContent) -> str:
    """Return the report of one run as a page."""
    rows, overview, tokens = flagged_rows(content), report_figures(content), explained_tokens(content)
    return render(
        "run.html.j2",
        [*overview, *(figure for each in tokens for figure in each.figures)],
        overview=overview,
        explained=tokens,
        scans=shown_scans(content),
        title=content.record.model.short_name,
        content=content,
        record=content.record,
        headline=facts.headline(content),
        meaning=facts.meaning(content),
        steps=facts.steps(content),
        tone=facts.tone(content),
        facts=facts.key_facts(content),
        notes=facts.notes(content),
        cards=cards(content),
        confidence=content.confidence,
        columns=filled_columns(content),
        rows=rows[:_MOST_ROWS],
        flagged=len(rows),
        how=facts.method_description(content),
        computed=facts.run_details(content),
        glossary=glossary(content.method),
    )


def render(name: str, figures: list[ReportFigure], **values: Any) -> str:
    """Fill a template and add style, scripts, the data of the figures and the content policy."""
    script = packaged("report.js")
    bundle = _plotly_bundle() if figures else None
    allowed = [_script_digest(script), *([bundle.digest] if bundle else [])]
    data = {
        "themes": {"light": template("light"), "dark": template("dark")},
        "figures": {figure.name: _plot_data(figure) for figure in figures},
    }
    return (
        environment()
        .get_template(name)
        .render(
            figures={figure.name: figure for figure in figures},
            bundle=bundle,
            data=json_for_html(data),
            policy="; ".join(
                (
                    "default-src 'none'",
                    "script-src " + " ".join(f"'sha256-{digest}'" for digest in allowed),
                    "style-src 'unsafe-inline'",
                    "img-src data: blob:",
                    "base-uri 'none'",
                    "form-action 'none'",
                )
            ),
            style=Markup(packaged("pieces.css") + packaged("report.css")),
            script=Markup(script),
            **values,
        )
    )


def _plot_data(figure: ReportFigure) -> dict[str, Any]:
    plot = json.loads(figure.plot.to_json())
    plot["layout"].pop("template", None)  # the page has it once, by theme
    return {"data": plot["data"], "layout": plot["layout"], "narrow": figure.narrow}


class _PlotlyBundle(NamedTuple):
    """A script inside a page."""

    compressed: str
    digest: str


@cache
def _plotly_bundle() -> _PlotlyBundle:
    """Read the script of the installed Plotly: 4.8 MB, 2 MB compressed; browsers unpack it themselves."""
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    # No time stamp, so that the same page has the same bytes.
    packed = gzip.compress(script.encode(), compresslevel=9, mtime=0)
    return _PlotlyBundle(base64.b64encode(packed).decode(), _script_digest(script))


def _script_digest(script: str) -> str:
    """Return the sha256 of a script as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


# Numbers stay legible on the deepest shade, on light and on dark ground.
_DEEPEST = 0.55


def similarity_page(found: Why, top: int = 10) -> str:
    """Return one self-contained HTML page: findings in words, strongest pairs, the matrix, deletions."""
    return render(
        "similarity.html.j2",
        [],
        title=found.model,
        found=found,
        lines=sentences(found, top),
        pairs=found.strongest(top),
        rows=shaded_rows(found),
    )


def shaded_rows(found: Why) -> list[tuple[Part, list[tuple[float, str]]]]:
    """Return each part of the first text with its contributions and their colours."""
    highest = float(np.abs(found.matrix).max()) or 1.0
    return [
        (part, [(float(value), _colour(float(value) / highest)) for value in values])
        for part, values in zip(found.first.parts, found.matrix, strict=True)
    ]


def write_similarity_page(found: Why, path: Path, top: int = 10) -> None:
    """Write the page to a file."""
    require_place(path)
    write_atomically(path, similarity_page(found, top).encode("utf-8", "backslashreplace"))


def require_place(path: Path) -> None:
    """Refuse a path that no file can be written to."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: pass the name of a file to write")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist: create it, or pass another file")


def _colour(share: float) -> str:
    """Return the shade of a cell: red raises the similarity, blue lowers it."""
    red, green, blue = (214, 69, 65) if share >= 0 else (52, 101, 202)
    return f"rgba({red},{green},{blue},{_DEEPEST * abs(share):.3f})"
