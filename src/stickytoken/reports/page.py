"""The report of a run as HTML, Markdown or JSON, and the HTML pages of an audit and of similar texts.

HTML pages are self-contained: a browser loads nothing from a server to show them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from stickytoken.attribution import TextPart, Why, summary
from stickytoken.audits import Audit
from stickytoken.detection.run import next_steps
from stickytoken.measurement.store import require_file_place, write_atomically
from stickytoken.repairs.records import last_verified
from stickytoken.reports import facts, templating
from stickytoken.reports.cards import FIRST_CARDS, Card, cards
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures import ReportFigure, template
from stickytoken.run_summary import rule_lines, short_headline, tone_of

# Maximum number of flagged tokens in the table of a page. More rows would make the page slow to open.
_MOST_ROWS = 1000


def _collect_shared_values(content: RunContent) -> dict[str, Any]:
    """Return the values used by the HTML, Markdown and JSON reports, keyed by template variable."""
    run = content.run
    return {
        "content": content,
        "record": run.record,
        "headline": short_headline(run),
        "rule": rule_lines(run),
        "steps": next_steps(run, last_verified(content.repairs)),
        "facts": facts.key_facts(content),
        "notes": facts.notes(content),
        "cards": cards(content),
        "strongest": facts.strongest(content),
        "overview": facts.report_figures(content),
        "explained": facts.explained_tokens(content),
        "audits": facts.show_audits(content),
        "scans": facts.show_scans(content),
        "rows": content.sticky.to_dicts(),
        "how": run.description.method,
        "computed": facts.run_details(content),
        "glossary": templating.glossary(run.method.TABLE),
    }


def run_page(content: RunContent) -> str:
    """Render the report of a run as one self-contained HTML page."""
    values = _collect_shared_values(content)
    flagged = content.sticky
    tone = tone_of(flagged)
    # To save room, the page omits columns that are empty for all flagged tokens.
    columns = [column for column in facts.columns(content) if flagged[column.key].is_not_null().any()]
    figures = list(values["overview"])
    for token in values["explained"]:
        figures += token.figures
    values |= {
        "parts": _name_parts(content, values),
        # Without sticky tokens, readers need only the first screen, so the parts below it are collapsed.
        "quiet": tone == "clean",
        "tone": tone,
        "title": content.run.record.model.short_title,
        "first_cards": FIRST_CARDS,
        "confidence": content.confidence,
        "columns": columns,
        "rows": values["rows"][:_MOST_ROWS],
        "flagged": len(flagged),
    }
    return render("run.html.j2", figures, **values)


def _name_parts(content: RunContent, values: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the parts that the page has below its first screen, in order, keyed by HTML id.

    ``values`` is the result of `_collect_shared_values`.
    """
    parts: dict[str, str] = {}
    if len(values["cards"]) > FIRST_CARDS:
        parts["worst"] = "More sticky tokens"
    if content.sticky.height and values["strongest"] is not None:
        parts["strongest"] = values["strongest"].title
    parts |= {figure.name: figure.title for figure in values["overview"]}
    if values["explained"]:
        parts["explanations"] = "Why tokens stick"
    if values["audits"]:
        parts["results"] = "Search results with copies"
    if values["scans"]:
        parts["documents"] = "Documents with copies"
    parts["flagged"] = "All flagged tokens"
    return parts | {"computed": "What was computed", "words": "How to read the numbers"}


def run_markdown(content: RunContent) -> str:
    """Render the report of a run as Markdown."""
    values = _collect_shared_values(content)
    # Missing values stay None, which Markdown shows as a dash.
    flagged = facts.make_data_table(content.sticky, facts.columns(content), missing=None)
    return templating.render_markdown("run.md.j2", flagged=flagged, **values)


def run_document(content: RunContent) -> dict[str, Any]:
    """Return the report of a run as a dictionary of JSON values."""
    values = _collect_shared_values(content)
    explanations = []
    for token in values["explained"]:
        figures = [_figure_document(figure) for figure in token.figures]
        explanations.append(vars(token) | {"figures": figures})
    return {
        "run": str(content.run.path),
        "model": content.run.model_name,
        "method": content.run.record.method,
        "headline": values["headline"],
        "rule": values["rule"],
        "next_steps": [step._asdict() for step in values["steps"]],
        "tone": tone_of(content.sticky),
        "facts": [fact._asdict() for fact in values["facts"]],
        "notes": values["notes"],
        "worst": [_card_document(card) for card in values["cards"]],
        "strongest": content.run.strongest(facts.STRONGEST).to_dicts(),
        "flagged": values["rows"],
        "figures": [_figure_document(figure) for figure in values["overview"]],
        "explanations": explanations,
        "audits": [_audit_document(audit) for audit in values["audits"]],
        "scans": [asdict(scan) for scan in values["scans"]],
        "how": values["how"],
        "computed": values["computed"],
        "glossary": values["glossary"],
    }


def _card_document(card: Card) -> dict[str, Any]:
    return card.row | {"reason": card.reason or None, "consequences": card.consequences}


def _audit_document(audit: facts.ShownAudit) -> dict[str, Any]:
    return {
        "name": audit.name,
        "answer": audit.answer._asdict(),
        "conclusions": audit.conclusions,
        "tokens": asdict(audit.tokens),
        "basis": audit.basis,
        "next_steps": [step._asdict() for step in audit.steps],
        "limits": audit.limits,
    }


def _figure_document(figure: ReportFigure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "alt": figure.alt,
        "reading": figure.reading,
        "columns": figure.table.columns,
        "rows": figure.table.rows,
    }


def render(name: str, figures: Sequence[ReportFigure], **values: Any) -> str:
    """Render a template as an HTML page that contains the scripts to draw its figures.

    Args:
        name: File name of the template.
        figures: Figures on the page.
        values: Other variables of the template.

    Returns:
        The page. It loads nothing from the network, so Plotly's script is embedded if there are figures.
    """
    script = templating.packaged("pieces.js") + templating.packaged("report.js")
    bundle = _pack_plotly() if figures else None
    plots = {}
    for figure in figures:
        plot = json.loads(figure.plot.to_json())  # as JSON values, because it may contain numpy arrays
        plot["layout"].pop("template", None)  # the page's script sets the template of the light or dark theme
        plots[figure.name] = {"data": plot["data"], "layout": plot["layout"], "narrow": figure.narrow}
    themes = {"light": template("light"), "dark": template("dark")}
    page = templating.environment().get_template(name)
    return page.render(
        figures={figure.name: figure for figure in figures},
        bundle=None if bundle is None else bundle.base64_gzip,
        data=templating.json_for_html({"themes": themes, "figures": plots}),
        policy=_make_security_policy(script, bundle),
        style=Markup(templating.packaged("pieces.css") + templating.packaged("report.css")),
        script=Markup(script),
        **values,
    )


@dataclass(frozen=True)
class _Bundle:
    """A compressed script to embed in a page."""

    base64_gzip: str  # the script, gzipped and base64-encoded
    digest: str  # `_hash_script` of the uncompressed script


@cache
def _pack_plotly() -> _Bundle:
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    # mtime=0 leaves out the time stamp, so that reports of the same run are byte for byte the same.
    packed = gzip.compress(script.encode(), compresslevel=9, mtime=0)
    return _Bundle(base64.b64encode(packed).decode(), _hash_script(script))


def _make_security_policy(script: str, bundle: _Bundle | None) -> str:
    """Return a Content-Security-Policy that lets a page run these scripts only, and load nothing."""
    digests = [_hash_script(script)]
    if bundle is not None:
        digests.append(bundle.digest)  # of the script that the page unpacks and runs
    allowed_scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    directives = (
        "default-src 'none'",
        f"script-src {allowed_scripts}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(directives)


def _hash_script(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


AUDIT_PAGE = "audit.html"


def audit_page(audit: Audit) -> str:
    """Render an HTML page that says whether an index is affected, for whoever decides about it."""
    return render(
        "audit.html.j2",
        figures=[],
        record=audit.record,
        audit=facts.show_audit(audit),
    )


def write_audit_page(audit: Audit) -> Path:
    """Write `audit_page` into the folder of the audit, and return its path."""
    path = audit.path / AUDIT_PAGE
    write_atomically(path, audit_page(audit).encode("utf-8", "backslashreplace"))
    return path


def similarity_page(why: Why, top: int = 10) -> str:
    """Render a self-contained HTML page that shows why two texts are similar.

    Args:
        why: How much each token pair contributes to the similarity.
        top: Number of pairs to list, largest contribution first.
    """
    # Neighbouring copies of a sticky token are shown as one part.
    grouped = why.grouped()
    return render(
        "similarity.html.j2",
        figures=[],
        title=why.model,
        why=grouped,
        lines=summary(why, top),
        pairs=grouped.strongest(top),
        rows=shade_rows(grouped),
    )


@dataclass(frozen=True)
class ShadedCell:
    """A cell of the contribution matrix."""

    value: float  # contribution to the cosine similarity
    color: str  # CSS colour of the cell's background


@dataclass(frozen=True)
class ShadedRow:
    """A row of the contribution matrix."""

    part: TextPart  # a part of the first text
    cells: list[ShadedCell]  # one cell for each part of the second text


# RGB colours, 0 to 255: red cells raise the similarity, blue cells lower it.
_RAISES = (214, 69, 65)
_LOWERS = (52, 101, 202)
# Opacity of the cell with the largest absolute value, low enough that numbers stay legible in both themes.
_DEEPEST_SHADE = 0.55


def shade_rows(why: Why) -> list[ShadedRow]:
    """Return the rows of the contribution matrix. The larger the absolute value, the deeper the colour."""
    largest = float(np.abs(why.matrix).max()) or 1.0  # 1.0 avoids a division by zero for a matrix of zeros
    rows = []
    for part, values in zip(why.first.parts, why.matrix, strict=True):
        cells = [ShadedCell(float(value), _shade(float(value), largest)) for value in values]
        rows.append(ShadedRow(part, cells))
    return rows


def _shade(value: float, largest: float) -> str:
    red, green, blue = _RAISES if value >= 0 else _LOWERS
    opacity = _DEEPEST_SHADE * abs(value / largest)
    return f"rgba({red},{green},{blue},{opacity:.3f})"


def write_similarity_page(why: Why, path: Path, top: int = 10) -> None:
    """Write the page of `similarity_page` to a file. The folder of the file must exist."""
    require_file_place(path)
    write_atomically(path, similarity_page(why, top).encode("utf-8", "backslashreplace"))
