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
from stickytoken.reports import content as facts, templating
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures import DataTable, ReportFigure, template


def _values(content: RunContent) -> dict[str, Any]:
    return {
        "content": content,
        "record": content.record,
        "headline": facts.headline(content),
        "meaning": facts.meaning(content),
        "steps": facts.steps(content),
        "facts": facts.key_facts(content),
        "notes": facts.notes(content),
        "cards": facts.cards(content),
        "overview": facts.report_figures(content),
        "explained": facts.explained_tokens(content),
        "scans": facts.shown_scans(content),
        "rows": facts.rows_of(content, content.flagged),
        "how": content.method.how(content.settings),
        "computed": facts.run_details(content),
        "glossary": templating.glossary(content.method),
    }


def run_page(content: RunContent) -> str:
    values, flagged = _values(content), content.flagged
    overview, tokens = values["overview"], values["explained"]
    parts = {"computed": "What was computed", "words": "How to read the numbers"}
    if content.run is not None:
        parts = {
            "worst": "The worst tokens" if len(content.sticky) else "No token is sticky",
            **{figure.name: figure.title for figure in overview},
            **({"explanations": "Why tokens stick"} if tokens else {}),
            **({"documents": "Documents with copies"} if values["scans"] else {}),
            "flagged": "All flagged tokens",
            **parts,
        }
    tone = facts.tone(content)
    own = {
        "parts": parts,
        # Of a model that needs nothing, a reader wants the answer; what else was measured is closed.
        "quiet": tone == "clean",
        "tone": tone,
        "title": content.record.model.short_name,
        "reasons": facts.reasons(content),
        "confidence": content.confidence,
        # A page has no room for columns in which no flagged token has a value.
        "columns": [
            column
            for column in facts.columns(content)
            if column.key not in flagged.columns or flagged[column.key].is_not_null().any()
        ],
        # More rows would make the file slow to open; tokens.parquet has them all.
        "rows": values["rows"][:1000],
        "flagged": len(flagged),
    }
    figures = [*overview, *(figure for each in tokens for figure in each["figures"])]
    return render("run.html.j2", figures, **values | own)


def run_markdown(content: RunContent) -> str:
    values, columns = _values(content), facts.columns(content)
    rows = [[templating.number(row[each.key], each.digits) for each in columns] for row in values["rows"]]
    flagged = DataTable([each.title for each in columns], rows)
    return templating.render_markdown("run.md.j2", flagged=flagged, **values)


def run_document(content: RunContent) -> dict[str, Any]:
    values, (curves, ordinary) = _values(content), facts.curves_of(content)
    return {
        "run": str(content.path),
        "model": content.record.model.name,
        "method": content.record.method,
        "finished": content.run is not None,
        "headline": values["headline"],
        "meaning": values["meaning"],
        "next_steps": [step._asdict() for step in values["steps"]],
        "tone": facts.tone(content),
        "notes": values["notes"],
        "worst": [
            card.row | {"pairs": card.pairs, "moved": card.moved and card.moved._asdict()}
            for card in values["cards"]
        ],
        "flagged": values["rows"],
        "curves": curves,
        "ordinary_curves": ordinary,
        "figures": [_figure(figure) for figure in values["overview"]],
        "explanations": [
            each | {"figures": [_figure(figure) for figure in each["figures"]]}
            for each in values["explained"]
        ],
        "scans": [each | {"sources": vars(each["sources"])} for each in values["scans"]],
        **{key: values[key] for key in ("how", "computed", "glossary")},
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
