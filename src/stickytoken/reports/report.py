"""Write the report of a run, or a comparison of several."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stickytoken.comparisons.result import READING, Comparison
from stickytoken.detection import Run
from stickytoken.errors import InputError, MissingExtraError, RunError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.reports import content as facts
from stickytoken.reports.comparison import (
    agreement_table,
    answers,
    comparability_table,
    comparison_figures,
    finding,
    headlines,
    summary_table,
    tone,
)
from stickytoken.reports.content import Card, RunContent, cards, columns, flagged_rows, read_content
from stickytoken.reports.explanation_section import ExplainedToken, explained_tokens
from stickytoken.reports.figure_set import curves_of, report_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.page import ShownScan, render, run_page, shown_scans
from stickytoken.reports.templating import glossary, number, plain, spaced
from stickytoken.validation import file_path, markdown, markdown_table, shown


def run_document(content: RunContent) -> dict[str, Any]:
    """Return the report of one run as JSON values; what is missing is null or an empty list."""
    curves, ordinary = curves_of(content)
    return {
        "run": str(content.path),
        "model": content.record.model.name,
        "method": content.record.method,
        "finished": content.run is not None,
        "headline": facts.headline(content),
        "meaning": facts.meaning(content),
        "next_steps": [step._asdict() for step in facts.steps(content)],
        "tone": facts.tone(content),
        "notes": facts.notes(content),
        "worst": [card.row | {"pairs": [asdict(pair) for pair in card.pairs]} for card in cards(content)],
        "flagged": flagged_rows(content),
        "curves": [asdict(curve) for curve in curves],
        "ordinary_curves": [asdict(curve) for curve in ordinary],
        "figures": [_figure(figure) for figure in report_figures(content)],
        "explanations": [_explained(each) for each in explained_tokens(content)],
        "scans": [asdict(each) for each in shown_scans(content)],
        "how": facts.method_description(content),
        "computed": facts.run_details(content),
        "glossary": glossary(content.method),
    }


def _figure(figure: ReportFigure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "alt": figure.alt,
        "reading": figure.reading,
        "columns": list(figure.table.columns),
        "rows": [list(row) for row in figure.table.rows],
    }


def _explained(found: ExplainedToken) -> dict[str, Any]:
    return {
        "token_id": found.token_id,
        "token": found.token,
        "run_verdict": found.run_verdict,
        "verdict": found.verdict,
        "findings": list(found.findings),
        "basis": found.basis,
        "notes": list(found.notes),
        "figures": [_figure(figure) for figure in found.figures],
    }


def run_markdown(content: RunContent) -> str:
    """Return the report of one run as Markdown."""
    record = content.record
    parts = [
        f"# Sticky tokens of {markdown(record.model.name)}",
        f"**{markdown(facts.headline(content))}**",
        markdown(facts.meaning(content) or ""),
        _bullets(f"To {markdown(step.purpose)}: {markdown(step.command)}" for step in facts.steps(content)),
        _bullets(f"{markdown(fact.value)} {markdown(fact.meaning)}" for fact in facts.key_facts(content)),
        _bullets(f"Note: {markdown(note)}" for note in facts.notes(content)),
    ]
    if content.run is not None:
        title = "The worst tokens" if len(content.sticky) else "No token is sticky: the highest, for scale"
        parts += [f"## {title}", *(_card(card) for card in cards(content))]
        for figure in report_figures(content):
            parts += [f"## {markdown(figure.title)}", markdown(figure.alt), markdown(figure.reading)]
            if figure.in_markdown:
                rows = [[number(value) for value in row] for row in figure.table.rows]
                parts.append(table(figure.table.columns, rows))
        if tokens := explained_tokens(content):
            parts += [
                "## Why tokens stick",
                *(part for each in tokens for part in _markdown_report_explained(each)),
            ]
        if scans := shown_scans(content):
            parts += ["## Documents with copies", *(part for each in scans for part in _scan(each))]
        heads = columns(content)
        rows = [[number(row[each.key], each.digits) for each in heads] for row in flagged_rows(content)]
        parts += ["## All flagged tokens", table([each.title for each in heads], rows) if rows else "None."]
    parts += ["## What was computed", markdown(facts.method_description(content))]
    for name, values in facts.run_details(content).items():
        shown = [[spaced(key), plain(value)] for key, value in values.items()]
        parts += [f"### {markdown(name)}", table(["what", "value"], shown)]
    meanings = glossary(content.method)
    parts += [
        "## How to read the numbers",
        _bullets(f"**{markdown(word)}**: {markdown(text)}" for word, text in meanings.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with its text escaped."""
    return markdown_table([*map(markdown, columns)], ([*map(markdown, row)] for row in rows))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown_report_explained(found: ExplainedToken) -> list[str]:
    parts = [
        f"### {markdown(found.token)}",
        markdown(found.verdict),
        _bullets(markdown(line) for line in found.findings),
        markdown(found.basis),
        _bullets(f"Note: {markdown(note)}" for note in found.notes),
    ]
    for figure in found.figures:
        parts += [f"#### {markdown(figure.title)}", markdown(figure.alt), markdown(figure.reading)]
    return parts


def _scan(found: ShownScan) -> list[str]:
    rows = [[number(value) for value in row] for row in found.sources.rows]
    described = [
        (each.id, "; ".join(filter(None, (each.found, each.severity, each.effect))))
        for each in found.documents
    ]
    documents = [f"**{markdown(name)}**: {markdown(text)}" for name, text in described]
    more = f"{found.more} more in the folder of the scan." if found.more else ""
    return [
        f"### {markdown(found.name)}",
        markdown(found.headline) + ".",
        markdown(found.basis or ""),
        table(found.sources.columns, rows) if rows else "",
        _bullets(documents),
        more,
    ]


def _card(card: Card) -> str:
    row: dict[str, Any] = card.row
    grade = row.get("severity") if row["verdict"] == "sticky" else None
    lift = f"lift {number(row['lift'], 4)}" if row["lift"] is not None else ""
    if row.get("lift_low") is not None:
        lift += f" (interval {number(row['lift_low'], 4)} to {number(row['lift_high'], 4)})"
    if row.get("validation_rate") is not None:
        lift += f", validation rate {number(row['validation_rate'], 3)}"
    grade = grade or row["verdict"] or "not judged"
    if row.get("kind"):
        grade += f", lifts most: {row['kind']}"
    lines = [f"- **{markdown(row['token'])}** ({markdown(grade)}): {markdown(lift)}"]
    for pair in card.pairs:
        which = "typical" if pair.which == "typical" else "rises most"
        lines.append(
            f"  - {which}: “{markdown(pair.anchor)}” and “{markdown(pair.carrier)}” with {pair.copies} "
            f"copies: similarity {markdown(number(pair.before, 3))} becomes {markdown(number(pair.after, 3))}"
        )
    return "\n".join(lines)


_WIDTH = 900
# Dots of a PNG by dot of the screen: sharp at the width of a column in print.
_SCALE = 3
_FORMATS = ("png", "svg")


def save_figures(figures: Sequence[ReportFigure], folder: Path) -> list[Path]:
    """Draw every figure as PNG and SVG on a white background.

    Kaleido draws them in a headless Chrome or Chromium. No file is replaced before all are drawn, and each
    is written whole or not at all.
    """
    if importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError("saving figures", "figures")
    if not figures:
        raise InputError("there are no figures to save: none of the runs is finished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror or error}") from error
    plots = [_on_white(figure) for figure in figures for _ in _FORMATS]
    names = [f"{figure.name}.{kind}" for figure in figures for kind in _FORMATS]
    with TemporaryDirectory() as drawn:
        _draw(plots, [Path(drawn) / name for name in names])
        for name in names:
            write_atomically(folder / name, (Path(drawn) / name).read_bytes())  # it may be on another disk
    return [folder / name for name in names]


def _on_white(figure: ReportFigure) -> Any:
    from plotly.graph_objects import Figure

    return Figure(figure.plot).update_layout(paper_bgcolor="white", plot_bgcolor="white")


def _draw(plots: list[Any], paths: list[Path]) -> None:
    from choreographer.browsers.chromium import ChromeNotFoundError
    from choreographer.errors import BrowserClosedError, BrowserFailedError
    from plotly.io import write_images

    heights = [plot.layout.height for plot in plots]
    try:
        write_images(plots, paths, width=_WIDTH, height=heights, scale=_SCALE)
    except (ChromeNotFoundError, BrowserFailedError, BrowserClosedError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"figures are drawn by Chrome or Chromium, and neither could be started ({reason}): install "
            "one, or set BROWSER_PATH to its program; the HTML report needs no browser to be written"
        ) from error
    except OSError as error:
        raise RunError(f"figures cannot be drawn in {paths[0].parent}: {error.strerror or error}") from error
    if missing := [path.name for path in paths if not path.is_file() or not path.stat().st_size]:
        raise RunError(f"the browser did not draw {missing[0]}: run the same command again")


def comparison_page(comparison: Comparison) -> str:
    """Return the comparison as one HTML page."""
    return render(
        "comparison.html.j2",
        comparison_figures(comparison),
        title=", ".join(comparison.names),
        comparison=comparison,
        finding=finding(comparison),
        tone=tone(comparison),
        summary=summary_table(comparison),
        answers=answers(comparison),
        comparability=comparability_table(comparison),
        agreements=agreement_table(comparison),
        glossary=_glossary(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    parts = [
        "# Sticky tokens compared",
        markdown(finding(comparison)),
        "\n".join(f"- **{markdown(name)}**: {markdown(line)}" for name, line, _ in headlines(comparison)),
        "\n".join(f"- Note: {markdown(note)}" for note in comparison.notes),
        "## The runs",
        _markdown_table(summary_table(comparison)),
        "## What can be compared",
        "\n".join(f"- {markdown(line)}" for line in answers(comparison)),
        _markdown_table(comparability_table(comparison)),
        "## Agreement",
        _markdown_table(agreement_table(comparison)),
    ]
    for figure in comparison_figures(comparison):
        parts += [f"## {markdown(figure.title)}", markdown(figure.alt), _markdown_table(figure.table)]
    parts += [
        "## How to read the numbers",
        "\n".join(
            f"- **{markdown(word)}**: {markdown(text)}" for word, text in _glossary(comparison).items()
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _glossary(comparison: Comparison) -> dict[str, str]:
    words = dict(READING)
    for each in comparison.runs:
        words |= {word: text for word, text in glossary(each.run.method).items() if word not in words}
    return words


def _markdown_table(found: DataTable) -> str:
    rows = [["" if value is None else number(value) for value in row] for row in found.rows]
    return table(list(found.columns), rows) if rows else ""


REPORT_FILE = "report.html"


class Format(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def report(
    *what: Run | str | Path | Comparison,
    format: str | None = None,  # noqa: A002 - the name of the option
    out: str | Path | None = None,
    figures: str | Path | None = None,
    explanations: str | Path | None = None,
) -> str:
    """Report a run, or a comparison made by `stickytoken.compare`. No model is needed.

    Args:
        what: a run or its folder, or a comparison; the report of an unfinished run says what is missing.
        format: ``html``, one self-contained file; ``md``; ``json``. Default: by the ending of ``out``, else
            ``html``.
        out: write it to this file too; its folder must exist.
        figures: save the figures as PNG and SVG into this folder; needs the extra ``figures`` and Chrome or
            Chromium.
        explanations: a folder that `explain` wrote to; those in the run folder are shown without it.

    Returns:
        The report.

    Raises:
        InputError: no run or several, an unknown format, no browser for the figures, a folder without
            explanations, or explanations of a comparison.
        MissingExtraError: figures without the extra.
        RunError: a folder that is no run or is damaged, or a file that cannot be written.
    """
    if format is not None and str(format) not in tuple(Format):
        raise InputError(f"format {shown(format)} is unknown: use one of {', '.join(Format)}")
    if not what:
        raise InputError("there is no run to report: pass a run folder")
    if len(what) > 1:
        raise InputError(
            f"a report is about one run, but {len(what)} were passed: put them side by side with "
            "`stickytoken compare`"
        )
    target = None if out is None else file_path("out", out)
    pictures = None if figures is None else file_path("figures", figures)
    why = None if explanations is None else file_path("explanations", explanations)
    subject = _subject(what[0], why)
    text = _written(subject, format_of(target) if format is None else Format(str(format)))
    if target is not None:
        write_report(text, target)
    if pictures is not None:
        save_figures(_figures(subject), pictures)
    return text


def _subject(what: Run | str | Path | Comparison, explanations: Path | None) -> RunContent | Comparison:
    if isinstance(what, Comparison):
        if explanations is not None:
            raise InputError("explanations belong to one run: leave them out of a comparison")
        return what
    return read_content(what.path if isinstance(what, Run) else file_path("the run", what), explanations)


def format_of(path: Path | None) -> Format:
    """Return the format that the ending of a file names; HTML for any other ending, and for no file."""
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    return Format(suffix) if suffix in tuple(Format) else Format.HTML


def write_report(text: str, path: Path) -> None:
    """Write a report, whole or not at all."""
    try:
        folder = path.parent.is_dir() and not path.is_dir()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    if not folder:
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{path} cannot be written: {reason}")
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


def _written(subject: RunContent | Comparison, format_: Format) -> str:
    if isinstance(subject, Comparison):
        if format_ is Format.HTML:
            return comparison_page(subject)
        return comparison_markdown(subject) if format_ is Format.MD else _json(subject.summary())
    if format_ is Format.HTML:
        return run_page(subject)
    return run_markdown(subject) if format_ is Format.MD else _json(run_document(subject))


def _json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _figures(subject: RunContent | Comparison) -> list[ReportFigure]:
    if isinstance(subject, Comparison):
        return comparison_figures(subject)
    of_tokens = [figure for each in explained_tokens(subject) for figure in each.figures]
    return [*report_figures(subject), *of_tokens]
