"""Write the report of a run, or a comparison of several."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stickytoken.comparisons.result import Comparison
from stickytoken.detection import Run
from stickytoken.errors import InputError, MissingExtraError, RunError
from stickytoken.measurement.store import write_atomically
from stickytoken.reports import content as facts
from stickytoken.reports.comparison import comparison_figures, comparison_markdown, comparison_page
from stickytoken.reports.content import Card, RunContent, read_content
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.page import run_page
from stickytoken.reports.templating import bullets, glossary, number, plain, spaced
from stickytoken.validation import file_path, markdown, shown

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
    subject: RunContent | Comparison
    if isinstance(what[0], Comparison):
        if why is not None:
            raise InputError("explanations belong to one run: leave them out of a comparison")
        subject = what[0]
    else:
        place = what[0].path if isinstance(what[0], Run) else file_path("the run", what[0])
        subject = read_content(place, why)
    text = _written(subject, format_of(target) if format is None else Format(str(format)))
    if target is not None:
        write_report(text, target)
    if pictures is not None:
        if isinstance(subject, Comparison):
            drawn = comparison_figures(subject)
        else:
            drawn = facts.report_figures(subject)
            drawn += [figure for each in facts.explained_tokens(subject) for figure in each["figures"]]
        save_figures(drawn, pictures)
    return text


def format_of(path: Path | None) -> Format:
    """Return the format that the ending of a file names; HTML for any other ending, and for no file."""
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    return Format(suffix) if suffix in tuple(Format) else Format.HTML


def write_report(text: str, path: Path) -> None:
    try:
        folder = path.parent.is_dir() and not path.is_dir()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    if not folder:
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{path} cannot be written: {reason}")
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


def _written(subject: RunContent | Comparison, format_: Format) -> str:
    if format_ is Format.HTML:
        return comparison_page(subject) if isinstance(subject, Comparison) else run_page(subject)
    if format_ is Format.MD:
        return comparison_markdown(subject) if isinstance(subject, Comparison) else run_markdown(subject)
    document = subject.summary() if isinstance(subject, Comparison) else run_document(subject)
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def run_document(content: RunContent) -> dict[str, Any]:
    """Return the report of one run as JSON values; what is missing is null or an empty list."""
    curves, ordinary = facts.curves_of(content)
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
        "worst": [
            card.row | {"pairs": card.pairs, "moved": card.moved and card.moved._asdict()}
            for card in facts.cards(content)
        ],
        "flagged": facts.rows_of(content, content.flagged),
        "curves": curves,
        "ordinary_curves": ordinary,
        "figures": [_figure(figure) for figure in facts.report_figures(content)],
        "explanations": [
            each | {"figures": [_figure(figure) for figure in each["figures"]]}
            for each in facts.explained_tokens(content)
        ],
        "scans": [each | {"sources": vars(each["sources"])} for each in facts.shown_scans(content)],
        "how": content.method.how(content.settings),
        "computed": facts.run_details(content),
        "glossary": glossary(content.method),
    }


def _figure(figure: ReportFigure) -> dict[str, Any]:
    said = {"name": figure.name, "title": figure.title, "alt": figure.alt, "reading": figure.reading}
    return said | vars(figure.table)


def run_markdown(content: RunContent) -> str:
    parts = [
        f"# Sticky tokens of {markdown(content.record.model.name)}",
        f"**{markdown(facts.headline(content))}**",
        markdown(facts.meaning(content) or ""),
        bullets(f"To {markdown(step.purpose)}: {markdown(step.command)}" for step in facts.steps(content)),
        bullets(f"{markdown(fact.value)} {markdown(fact.meaning)}" for fact in facts.key_facts(content)),
        bullets(f"Note: {markdown(note)}" for note in facts.notes(content)),
    ]
    if content.run is not None:
        parts += _judged(content)
    parts += ["## What was computed", markdown(content.method.how(content.settings))]
    for name, values in facts.run_details(content).items():
        rows = [(spaced(key), plain(value)) for key, value in values.items()]
        parts += [f"### {markdown(name)}", DataTable(("what", "value"), rows).markdown()]
    words = glossary(content.method).items()
    parts += [
        "## How to read the numbers",
        bullets(f"**{markdown(word)}**: {markdown(text)}" for word, text in words),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _judged(content: RunContent) -> list[str]:
    title = "The worst tokens" if len(content.sticky) else "No token is sticky: the highest, for scale"
    parts = [f"## {title}", *(_card(card) for card in facts.cards(content))]
    for figure in facts.report_figures(content):
        parts += _described(figure, "##")
        if figure.in_markdown:
            parts.append(figure.table.markdown())
    if tokens := facts.explained_tokens(content):
        parts.append("## Why tokens stick")
    for each in tokens:
        parts += [
            f"### {markdown(each['token'])}",
            markdown(each["verdict"]),
            bullets(map(markdown, each["findings"])),
            markdown(each["basis"]),
            bullets(f"Note: {markdown(note)}" for note in each["notes"]),
            *(part for figure in each["figures"] for part in _described(figure, "####")),
        ]
    if scans := facts.shown_scans(content):
        parts.append("## Documents with copies")
    for scan in scans:
        parts += [
            f"### {markdown(scan['name'])}",
            markdown(scan["headline"]) + ".",
            markdown(scan["basis"] or ""),
            scan["sources"].markdown(),
            bullets(
                f"**{markdown(each['id'])}**: "
                + markdown("; ".join(filter(None, (each["found"], each["severity"], each["effect"]))))
                for each in scan["documents"]
            ),
            f"{scan['more']} more in the folder of the scan." if scan["more"] else "",
        ]
    heads = facts.columns(content)
    rows = [
        [number(row[each.key], each.digits) for each in heads]
        for row in facts.rows_of(content, content.flagged)
    ]
    flagged = DataTable([each.title for each in heads], rows).markdown()
    return [*parts, "## All flagged tokens", flagged or "None."]


def _described(figure: ReportFigure, level: str) -> list[str]:
    return [f"{level} {markdown(figure.title)}", markdown(figure.alt), markdown(figure.reading)]


def _card(card: Card) -> str:
    row: dict[str, Any] = card.row
    lift = f"lift {number(row['lift'], 4)}" if row["lift"] is not None else ""
    if row.get("lift_low") is not None:
        lift += f" (interval {number(row['lift_low'], 4)} to {number(row['lift_high'], 4)})"
    if row.get("validation_rate") is not None:
        lift += f", validation rate {number(row['validation_rate'], 3)}"
    grade = row.get("severity") if row["verdict"] == "sticky" else None
    grade = grade or row["verdict"] or "not judged"
    said = [row.get("reason"), card.moved and card.moved.sentence(), lift]
    lines = [f"- **{markdown(row['token'])}** ({markdown(grade)}): {markdown('; '.join(filter(None, said)))}"]
    for pair in card.pairs:
        which = "typical" if pair["which"] == "typical" else "rises most"
        before, after = (markdown(number(pair[when], 3)) for when in ("before", "after"))
        lines.append(
            f"  - {which}: “{markdown(pair['anchor'])}” and “{markdown(pair['carrier'])}” with "
            f"{pair['copies']} copies: similarity {before} becomes {after}"
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
    from plotly.graph_objects import Figure

    if not figures:
        raise InputError("there are no figures to save: none of the runs is finished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror or error}") from error
    white = {"paper_bgcolor": "white", "plot_bgcolor": "white"}
    plots = [Figure(figure.plot).update_layout(white) for figure in figures for _ in _FORMATS]
    names = [f"{figure.name}.{kind}" for figure in figures for kind in _FORMATS]
    with TemporaryDirectory() as drawn:
        _draw(plots, [Path(drawn) / name for name in names])
        for name in names:
            write_atomically(folder / name, (Path(drawn) / name).read_bytes())  # it may be on another disk
    return [folder / name for name in names]


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
