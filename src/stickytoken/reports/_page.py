"""A report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from typing import Any, NamedTuple

from markupsafe import Markup

from stickytoken.reports import facts
from stickytoken.reports._escaping import json_for_html
from stickytoken.reports._glossary import glossary
from stickytoken.reports._scan_section import shown_scans
from stickytoken.reports.cards import cards
from stickytoken.reports.content import RunContent
from stickytoken.reports.explanation_section import explained_tokens
from stickytoken.reports.figure_set import report_figures
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.reports.figures.style import template
from stickytoken.reports.templating import environment, packaged
from stickytoken.reports.token_table import filled_columns, flagged_rows

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
    """Fill a template and add style, scripts, the data of the figures and the content policy.

    Args:
        name: of the template.
        figures: all figures of the page.
        values: whatever else the template uses.
    """
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
    """A script inside a page.

    Attributes:
        compressed: gzip of the script, base64.
        digest: sha256 of the script, base64, as a Content-Security-Policy names it.
    """

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
