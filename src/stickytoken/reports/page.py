"""Pages that load nothing from anywhere: the report of a run, and why two texts are similar."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from stickytoken.attribution import Part, Why, sentences
from stickytoken.errors import InputError
from stickytoken.measurement import write_atomically
from stickytoken.methods import Column
from stickytoken.reports import content as facts, templating
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures import DataTable, ReportFigure, template


def _values(content: RunContent) -> dict[str, Any]:
    return {
        "content": content,
        "record": content.record,
        "headline": facts.headline(content),
        "rule": facts.rule(content),
        "steps": facts.steps(content),
        "facts": facts.key_facts(content),
        "notes": facts.notes(content),
        "cards": facts.cards(content),
        "strongest": facts.strongest(content),
        "rank_in_a_search": facts.rank_in_a_search(content),
        "overview": facts.report_figures(content),
        "explained": facts.explained_tokens(content),
        "scans": facts.shown_scans(content),
        "rows": facts.rows_of(content, content.flagged),
        "how": content.method.how(content.settings),
        "computed": facts.run_details(content),
        "glossary": templating.glossary(content.method),
    }


def run_page(content: RunContent) -> str:
    """Render the report of a run as one self-contained HTML page."""
    values = _values(content)
    flagged = content.flagged
    overview = values["overview"]
    explained = values["explained"]
    tone = facts.tone(content)
    own = {
        "parts": _parts(content, values),
        # Of a model that needs nothing, a reader wants the answer; what else was measured is closed.
        "quiet": tone == "clean",
        "tone": tone,
        "title": content.record.model.title,
        "first_cards": facts.FIRST_CARDS,
        "confidence": content.confidence,
        # A page has no room for columns in which no flagged token has a value.
        "columns": [
            column
            for column in facts.columns(content)
            if column.key not in flagged.columns or flagged[column.key].is_not_null().any()
        ],
        # More rows would make the file slow to open; tokens.parquet has them all.
        "rows": values["rows"][:_MOST_ROWS],
        "flagged": len(flagged),
    }
    figures = list(overview)
    for token in explained:
        figures += token["figures"]
    return render("run.html.j2", figures, **values | own)


_MOST_ROWS = 1000


def _parts(content: RunContent, values: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the page's parts below the first screen, by id."""
    parts: dict[str, str] = {}
    if content.run is not None:
        if len(values["cards"]) > facts.FIRST_CARDS:
            parts["worst"] = "More sticky tokens"
        if content.sticky.height and values["strongest"] is not None:
            parts["strongest"] = values["strongest"].title
        parts |= {figure.name: figure.title for figure in values["overview"]}
        if values["explained"]:
            parts["explanations"] = "Why tokens stick"
        if values["scans"]:
            parts["documents"] = "Documents with copies"
        parts["flagged"] = "All flagged tokens"
    return parts | {"computed": "What was computed", "words": "How to read the numbers"}


def run_markdown(content: RunContent) -> str:
    """Render the report of a run as Markdown."""
    values = _values(content)
    columns = facts.columns(content)
    rows = [[_cell(column, row[column.key]) for column in columns] for row in values["rows"]]
    flagged = DataTable([column.title for column in columns], rows)
    return templating.render_markdown("run.md.j2", flagged=flagged, **values)


def _cell(column: Column, value: Any) -> str | None:
    """Write a cell of the table of flagged tokens; None is missing."""
    return None if value is None else column.text(value)


def run_document(content: RunContent) -> dict[str, Any]:
    """Return the report of a run as JSON values."""
    values = _values(content)
    curves, ordinary_curves = facts.curves_of(content)
    return {
        "run": str(content.path),
        "model": content.record.model.name,
        "method": content.record.method,
        "finished": content.run is not None,
        "headline": values["headline"],
        "rule": values["rule"],
        "next_steps": [step._asdict() for step in values["steps"]],
        "tone": facts.tone(content),
        "facts": [fact._asdict() for fact in values["facts"]],
        "notes": values["notes"],
        "worst": [
            card.row | {"consequences": card.consequences, "pairs": card.pairs} for card in values["cards"]
        ],
        "strongest": facts.strongest_rows(content),
        "rank_in_a_search": values["rank_in_a_search"],
        "flagged": values["rows"],
        "curves": curves,
        "ordinary_curves": ordinary_curves,
        "figures": [_figure(figure) for figure in values["overview"]],
        "explanations": [
            token | {"figures": [_figure(figure) for figure in token["figures"]]}
            for token in values["explained"]
        ],
        "scans": [scan | {"sources": vars(scan["sources"])} for scan in values["scans"]],
        "how": values["how"],
        "computed": values["computed"],
        "glossary": values["glossary"],
    }


def _figure(figure: ReportFigure) -> dict[str, Any]:
    said = {"name": figure.name, "title": figure.title, "alt": figure.alt, "reading": figure.reading}
    return said | vars(figure.table)


def render(name: str, figures: list[ReportFigure], **values: Any) -> str:
    script = templating.packaged("pieces.js") + templating.packaged("report.js")
    bundle, digest = _plotly_bundle() if figures else (None, None)
    drawn = {}
    for figure in figures:
        plot = json.loads(figure.plot.to_json())
        plot["layout"].pop("template", None)  # the page has it once, by theme
        drawn[figure.name] = {"data": plot["data"], "layout": plot["layout"], "narrow": figure.narrow}
    themes = {"light": template("light"), "dark": template("dark")}
    policy = (
        "default-src 'none'",
        " ".join(("script-src", *(f"'sha256-{each}'" for each in (_digest(script), digest) if each))),
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return (
        templating.environment()
        .get_template(name)
        .render(
            figures={figure.name: figure for figure in figures},
            bundle=bundle,
            data=templating.json_for_html({"themes": themes, "figures": drawn}),
            policy="; ".join(policy),
            style=Markup(templating.packaged("pieces.css") + templating.packaged("report.css")),
            script=Markup(script),
            **values,
        )
    )


@cache
def _plotly_bundle() -> tuple[str, str]:
    """The script of the installed Plotly, compressed (2 MB of 4.8), and its digest."""
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    # No time stamp, so that the same page has the same bytes.
    packed = gzip.compress(script.encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode(), _digest(script)


def _digest(script: str) -> str:  # as a Content-Security-Policy names it
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def similarity_page(found: Why, top: int = 10) -> str:
    shown = found.grouped()
    return render(
        "similarity.html.j2",
        [],
        title=found.model,
        found=shown,
        lines=sentences(found, top),
        pairs=shown.strongest(top),
        rows=shaded_rows(shown),
    )


def shaded_rows(found: Why) -> list[tuple[Part, list[tuple[float, str]]]]:
    highest = float(np.abs(found.matrix).max()) or 1.0

    def shade(value: float) -> str:
        red, green, blue = (214, 69, 65) if value >= 0 else (52, 101, 202)
        # Numbers stay legible on the deepest shade, on light and on dark ground.
        return f"rgba({red},{green},{blue},{0.55 * abs(value / highest):.3f})"

    return [
        (part, [(float(value), shade(float(value))) for value in values])
        for part, values in zip(found.first.parts, found.matrix, strict=True)
    ]


def write_similarity_page(found: Why, path: Path, top: int = 10) -> None:
    require_place(path)
    write_atomically(path, similarity_page(found, top).encode("utf-8", "backslashreplace"))


def require_place(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder: pass the name of a file to write")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist: create it, or pass another file")
