"""stickytoken scan: find the documents with copies of sticky tokens, and whether they matter."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stickytoken.cli._loading import announced, command, load_for
from stickytoken.cli.options.model import EndpointLoadingOptions, PromptingOptions, RunsModel
from stickytoken.cli.options.output import VerbosityOptions
from stickytoken.cli.options.texts import (
    DocumentColumns,
    EffectOptions,
    ProcessOptions,
    ScanFormat,
    ScanOutput,
)
from stickytoken.cli.output.console import as_json, harmless, inform, print_document, print_line, print_table
from stickytoken.version import __version__

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.scanning.results import Scan

_EFFECTS = ("effect", "moves_up", "severity")
_SKIPPED_SHOWN = 5
_SOURCES_SHOWN = 20


@command
def scan(
    run: Annotated[Path, typer.Argument(help="Run folder of the model.")],
    documents: Annotated[
        str,
        typer.Argument(
            help="Your documents: a txt file with one per line, a csv, tsv, jsonl or parquet file, a folder, "
            "hub:REPOSITORY or hub:REPOSITORY@SPLIT, or - for stdin: lines, or JSON lines with --column."
        ),
    ],
    *,
    columns: DocumentColumns,
    effects: EffectOptions,
    model: RunsModel = None,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    processes: ProcessOptions,
    output: ScanOutput,
    verbosity: VerbosityOptions,
) -> None:
    """Find the documents with copies of sticky tokens, text of special tokens or runs of any word.

    Run the same command again to continue an interrupted scan.

    Example: stickytoken scan runs/all-MiniLM-L6-v2-profile-0123456789ab documents.jsonl --effect
    """
    from stickytoken.detection.run import open_run
    from stickytoken.measurement.atomic import require_writable
    from stickytoken.scanning.scan import ScanOptions, default_out, scan_documents

    chosen = {**asdict(columns), **effects.chosen(), "workers": processes.workers}
    output_format = output.format
    opened = open_run(run)
    folder = output.folder or default_out(opened, documents, ScanOptions(**chosen))
    require_writable(folder)
    if output.out is not None:
        require_writable(output.out.parent)
    encoder = None
    if chosen["effect"] is not None:
        encoder = load_for(str(run), opened.record, loading, prompting, model)
    measured = partial(scan_documents, opened, documents, **chosen)
    with announced(encoder, loading, lambda stand_in, _: measured(encoder=stand_in)) as progress:
        found = measured(encoder=encoder, out=folder, progress=progress)
    _show_scan(found, output_format, output.out, output.limit)
    if folder.parent == opened.path:
        inform(f"for a report with this: stickytoken report {opened.path}")


def _show_scan(scan: Scan, output_format: ScanFormat, out: Path | None, limit: int) -> None:
    """Print a scan, or write it to a file.

    Raises:
        RunError: The file cannot be written.
    """
    if output_format is ScanFormat.TABLE:
        _print(scan, limit)
        return
    written = {ScanFormat.JSON: _json, ScanFormat.CSV: _csv, ScanFormat.SARIF: _sarif}[output_format](scan)
    if out is None:
        print_document(written)
        return
    from stickytoken.measurement.atomic import write_atomically
    from stickytoken.scanning.results import headline

    write_atomically(out, written.encode())
    print_line(headline(scan))
    inform(f"written: {out}")


def _json(scan: Scan) -> str:
    return as_json(scan.summary() | {"found_documents": scan.worst.to_dicts()})


def _sarif(scan: Scan) -> str:
    from stickytoken.findings import repository_root, sarif
    from stickytoken.scanning.results import RULES, incomplete, scan_findings

    root = repository_root(Path.cwd())
    return as_json(sarif(scan_findings(scan, root), RULES, __version__, incomplete(scan)))


def _csv(scan: Scan) -> str:
    import polars as pl

    def joined(column: str) -> pl.Expr:
        texts = pl.col(column).list.eval(pl.element().struct.field("text")).list.join(" | ")
        return texts.map_elements(harmless, return_dtype=pl.String)

    names = ("id", "source", "path")
    table = scan.worst.with_columns(
        *(pl.col(name).map_elements(harmless, return_dtype=pl.String) for name in names),
        pl.col("kinds").list.join(" "),
        joined("words"),
        joined("excerpt"),
    )
    return table.write_csv()


def _print(scan: Scan, limit: int) -> None:
    from stickytoken.scanning.results import headline, skipped_records

    result = scan.result
    print_line(headline(scan))
    _print_sources(scan)
    if result.found:
        worst = scan.worst.head(limit)
        graded = worst["effect"].null_count() < len(worst)
        columns = ["document", "found", "copies", "share", *(_EFFECTS if graded else ()), "text"]
        rows = [_row(row, graded) for row in worst.iter_rows(named=True)]
        digits = [None, None, None, 2, *((2, 2, None) if graded else ()), None]
        print_table(f"the worst {len(worst)} of {result.found:,}, findings in [[ ]]", columns, rows, digits)
    _print_effect(scan)
    print_line(
        f"{result.documents:,} documents of {scan.record.documents} in {result.seconds:,.0f} s"
        + ("" if scan.path is None else f"; scan: {scan.path}")
    )
    if result.skipped:
        inform(f"note: {skipped_records(result.skipped)}, without readable text:")
        for each in result.skipped_first[:_SKIPPED_SHOWN]:
            inform(f"  {each.place}: {each.reason}")


def _print_sources(scan: Scan) -> None:
    sources = [each for each in scan.result.sources if each.found]
    if not sources:
        return
    graded = scan.result.matter is not None
    columns = ["source", "documents", "found", *(["matter"] if graded else [])]
    rows = [
        [each.source or "(none)", each.documents, each.found, *([each.matter] if graded else [])]
        for each in sources[:_SOURCES_SHOWN]
    ]
    print_table("by source", columns, rows)


def _print_effect(scan: Scan) -> None:
    from stickytoken.scanning.results import basis

    effect = scan.result.effect
    if effect is None:
        return
    print_line(basis(scan) or "")
    if effect.agreement is not None:
        inform(
            f"note: predicted and measured effects of {effect.compared} documents have a rank correlation of "
            f"{effect.agreement:.2f}"
        )
    if effect.nothing_left:
        inform(f"note: {effect.nothing_left} documents have no effect: nothing is left without the copies")


def _row(row: dict[str, Any], graded: bool) -> list[Any]:
    words = ", ".join(f"{each['text']} \N{MULTIPLICATION SIGN}{each['copies']}" for each in row["words"][:3])
    marked = "".join(f"[[{each['text']}]]" if each["found"] else each["text"] for each in row["excerpt"])
    shown = [row["id"], words, row["copies"], row["share"]]
    return [*shown, *([row[name] for name in _EFFECTS] if graded else []), " ".join(marked.split())]
