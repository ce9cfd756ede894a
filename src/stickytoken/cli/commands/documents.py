"""stickytoken scan and clean: find copies of sticky tokens in documents, and take them out of text."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.version import __version__

if TYPE_CHECKING:
    from stickytoken.cleaning import Cleaned, Cleaner
    from stickytoken.cleaning.files import CleaningTotals
    from stickytoken.data.documents import Document, Skipped
    from stickytoken.scanning.scan import Scan


ScanFormat = StrEnum("ScanFormat", "TABLE JSON CSV SARIF")


@command("revision", "route", "prompt", "token_prepending", "contrast", "truncate_dim", "layer")
def scan(
    run: opt.Argument[Path],
    documents: opt.Argument[str],
    *,
    column: opt.TextColumn = None,
    id_column: Annotated[str | None, opt.texts_option("--id")] = None,
    source_column: Annotated[str | None, opt.texts_option("--source")] = None,
    effect: Annotated[bool, opt.method_option("--effect")] = False,
    predict: Annotated[bool, opt.method_option("--predict")] = False,
    queries: opt.Method[str | None] = None,
    model: opt.RunsModel = None,
    loading: opt.AnyModelOptions,
    workers: Annotated[int | None, opt.setting(min=1)] = None,
    folder: Annotated[Path | None, opt.output_option("--scan-folder")] = None,
    out: opt.Output[Path | None] = None,
    output_format: opt.FormatChoice[ScanFormat | None] = None,
    limit: opt.ListLimit[int] = 20,
) -> None:
    """Find the documents with copies of sticky tokens, text of special tokens or repetitions of any word.

    Run the same command again to continue an interrupted scan.

    Example: stickytoken scan runs/all-MiniLM-L6-v2-profile-0123456789ab documents.jsonl --effect

    Args:
        run: Run folder of the model.
        documents: Your documents: a txt file with one per line, a csv, tsv, jsonl or parquet file, all but
            parquet also with .gz; a folder; hub:REPOSITORY or hub:REPOSITORY@SPLIT; or - for stdin: lines, or
            JSON lines with --column.
        id_column: Column with the id. Default: found by name.
        source_column: Column with the source of a document. Default: source.
        effect: Measure what copies do: encode the documents with findings, with copies and without.
        predict: Predict what copies do from the run: encode the documents only as they are. Less exact.
        queries: Your own queries, in a file as for judge. Default: first words of clean documents.
        workers: Number of processes that search documents. Default: one per core.
        folder: Folder of the scan, where an interrupted one continues. Default: scan-<identity> in the run
            folder, where report finds it.
        out: File for the results instead of stdout (.json, .csv or .sarif), or a folder for the scan.
        output_format: Print a summary with the worst documents, one JSON document, or all documents with
            findings as CSV or SARIF. Default: by the ending of --out, else table.
        limit: Maximum number of documents to list in a table.
    """
    from stickytoken.measurement import require_writable, write_atomically
    from stickytoken.scanning import scan as scanning

    if effect and predict:
        raise typer.BadParameter("use one of --effect and --predict", param_hint="--predict")
    if queries is not None and not (effect or predict):
        raise typer.BadParameter("it needs --effect or --predict", param_hint="--queries")
    texts = None if queries is None else stickytoken.load_sentences(queries)
    if output_format is None:
        endings = {f".{each}": each for each in ScanFormat if each is not ScanFormat.TABLE}
        output_format = ScanFormat.TABLE if out is None else endings.get(out.suffix, ScanFormat.TABLE)
    if output_format is ScanFormat.TABLE and out is not None:
        if out.suffix or folder is not None:
            raise InputError(
                f"--out {str(out)!r} names no format: end it in .json, .csv or .sarif, or pass a folder"
            )
        folder = out
        out = None
    opened = stickytoken.open_run(run)
    kind = None
    if effect or predict:
        kind = "measured" if effect else "predicted"
    measured = partial(
        scanning.scan_documents,
        opened,
        documents,
        column=column,
        id_column=id_column,
        source_column=source_column,
        effect=kind,
        queries=texts,
        workers=workers,
    )
    folder = folder or scanning.default_out(opened, documents, scanning.ScanOptions(**measured.keywords))
    require_writable(folder)
    if out is not None:
        require_writable(out.parent)
    encoder = opt.load_for(str(run), opened.record, loading, model) if effect or predict else None
    with opt.announced(encoder, loading, lambda stand_in, _: measured(encoder=stand_in)) as progress:
        found = measured(encoder=encoder, out=folder, progress=progress)
    if output_format is ScanFormat.TABLE:
        _print_scan(found, limit)
    elif out is None:
        console.print_document(_scan_document(found, output_format))
    else:
        write_atomically(out, _scan_document(found, output_format).encode())
        console.print_line(scanning.headline(found))
        console.inform(f"written: {out}")
    if folder.parent == opened.path:
        console.inform(f"for a report with this: stickytoken report {opened.path}")


def _scan_document(scan: Scan, output_format: ScanFormat) -> str:
    if output_format is ScanFormat.JSON:
        return console.as_json(scan.summary() | {"found_documents": scan.worst.to_dicts()})
    if output_format is ScanFormat.SARIF:
        from stickytoken.findings import sarif
        from stickytoken.scanning.scan import RULES, incomplete, scan_findings

        return console.as_json(sarif(scan_findings(scan), RULES, __version__, incomplete(scan)))
    import polars as pl

    lists = pl.col("words", "excerpt").list.eval(pl.element().struct.field("text")).list.join(" | ")
    table = scan.worst.with_columns(lists, pl.col("kinds").list.join(" "))
    texts = pl.col("id", "source", "path", "words", "excerpt")
    return table.with_columns(texts.map_elements(console.harmless, return_dtype=pl.String)).write_csv()


def _print_scan(scan: Scan, limit: int) -> None:
    """Print totals, sources and the worst documents."""
    from stickytoken.cleaning.spans import SpanKind
    from stickytoken.scanning import scan as scanning

    result, effect = scan.result, scan.result.effect
    console.print_line(scanning.headline(scan))
    if sources := [each for each in result.sources if each.found][:20]:
        width = 3 + (result.matter is not None)
        counts = [(each.source or "(none)", each.documents, each.found, each.matter) for each in sources]
        columns = ("source", "documents", "found", "matter")
        console.print_table("by source", columns[:width], [row[:width] for row in counts])
    if len(scan.documents):
        worst = scan.worst.head(limit)
        effects = ("effect", "moves_up", "severity") if worst["effect"].null_count() < len(worst) else ()
        rows = []
        for row in worst.iter_rows(named=True):
            found = [f"{each['text']} \N{MULTIPLICATION SIGN}{each['copies']}" for each in row["words"][:3]]
            marked = [f"[[{each['text']}]]" if each["found"] else each["text"] for each in row["excerpt"]]
            text = " ".join("".join(marked).split())
            measured = [row[name] for name in effects]
            causes = ", ".join(SpanKind(kind).cause for kind in row["kinds"])
            rows.append([row["id"], causes, ", ".join(found), row["copies"], row["share"], *measured, text])
        titles = ["document", "cause", "found", "copies", "share", *effects, "text"]
        digits = [None, None, None, None, 2, *((2, 2, None) if effects else ()), None]
        title = f"the worst {len(worst)} of {len(scan.documents):,}, findings in [[ ]]"
        console.print_table(title, titles, rows, digits)
    if effect is not None:
        console.print_line(scanning.basis(scan) or "")
        if effect.agreement is not None:
            compared = f"predicted and measured effects of {effect.compared} documents"
            console.inform(f"note: {compared} have a rank correlation of {effect.agreement:.2f}")
        if effect.nothing_left:
            unmeasured = f"{effect.nothing_left} documents have no effect"
            console.inform(f"note: {unmeasured}: nothing is left without the copies")
    where = "" if scan.path is None else f"; scan: {scan.path}"
    read = f"{result.documents:,} documents of {scan.record.documents}"
    console.print_line(f"{read} in {result.seconds:,.0f} s{where}")
    _inform_skipped(result.skipped, result.skipped_first, "skipped")


CleanFormat = StrEnum("CleanFormat", "TEXT JSON")

# Bytes of cleaned documents for stdout that are kept in memory; more go to a temporary file.
_IN_MEMORY = 64 * 2**20


@command()
def clean(
    rules: Annotated[Path, typer.Argument(metavar="RUN|RULES")],
    file: Annotated[Path, typer.Argument(show_default=True)] = Path("-"),
    column: opt.TextColumn = None,
    id_column: Annotated[str | None, opt.texts_option("--id")] = None,
    remove_suspected: Annotated[bool, opt.method_option("--remove-suspected")] = False,
    remove_all: Annotated[bool, opt.method_option("--remove-all")] = False,
    action: Annotated[list[str] | None, opt.method_option(metavar="KIND=ACTION")] = None,
    out: opt.Output[Path | None] = None,
    diff: Annotated[bool, opt.output_option("--diff")] = False,
    rules_out: opt.Output[Path | None] = None,
    *,
    output_format: opt.FormatChoice[CleanFormat] = CleanFormat.TEXT,
) -> None:
    """Remove copies of the tokens that a run flags, special tokens and repetitions from documents.

    Only the text changes: format, other columns and unreadable records stay as they are.

    The first copy of a repetition stays, and so does a flagged word that stands alone.

    Example: stickytoken clean runs/minilm documents.jsonl --out cleaned.jsonl

    Args:
        rules: Run folder, or a file that --rules-out wrote.
        file: Your documents: a txt file with one per line, or a csv, tsv, jsonl or parquet file; all but
            parquet also with .gz. - is stdin: lines, or JSON lines with --column.
        id_column: Column with the id, for messages. Default: found by name.
        remove_suspected: Also remove what is only suspected.
        remove_all: Remove flagged tokens wherever they occur, also a single word in a sentence.
        action: What to do with flagged, special, repetition or suspected findings: remove, replace, escape
            (special only), report or refuse. Repeatable. Default: remove, report for suspected.
        out: File for the documents instead of stdout, written whole or not at all. It may be FILE itself.
        diff: Print the changed documents only, before and after.
        rules_out: Write the cleaner as a small JSON file that needs no run, and read no documents unless FILE
            is given.
        output_format: Print the documents, or one JSON document of the removals.
    """
    from stickytoken.cleaning.files import clean_file
    from stickytoken.data.documents import NamedColumns
    from stickytoken.data.rewriting import open_source, require_same_format
    from stickytoken.measurement import require_writable, write_atomically

    is_json = output_format is CleanFormat.JSON
    if diff and is_json:
        raise typer.BadParameter("use one of --diff and --format json", param_hint="--diff")
    cleaner = _cleaner(rules, action or (), remove_suspected, remove_all)
    if rules_out is not None:
        cleaner.save(rules_out)
        rules_saved = f"{len(cleaner.rules.words):,} words, {len(cleaner.rules.specials):,} special tokens"
        console.inform(f"{rules_out}: {rules_saved}")
        if file == Path("-"):
            return
    source = open_source(file, NamedColumns(column, id_column))
    compress = None
    if out is not None:
        require_same_format(source, out)
        require_writable(out.absolute().parent)
        compress = out.suffix.lower() == ".gz"
    removals: list[dict[str, Any]] = []

    def show(document: Document, cleaned: Cleaned) -> None:
        if diff:
            place = document.id if document.line is None else f"line {document.line}"
            console.print_line(place if document.id in (place, "") else f"{place} ({document.id})")
            console.print_line(f"- {document.text}")
            console.print_line(f"+ {cleaned.text}")
        elif is_json:
            for removal in cleaned.removals:
                text = document.text[removal.start : removal.end]
                removals.append({"id": document.id, "line": document.line, **asdict(removal), "text": text})

    def write(stream: BinaryIO) -> CleaningTotals:
        with console.progress_bar() as progress:
            return clean_file(source, cleaner, stream, on_cleaned=show, compress=compress, progress=progress)

    if out is not None:
        outcome: list[CleaningTotals] = []
        write_atomically(out, lambda stream: outcome.append(write(stream)))
        totals = outcome[0]
    elif diff or is_json:
        with Path(os.devnull).open("wb") as nowhere:
            totals = write(nowhere)
    elif source.is_binary and sys.stdout.isatty():
        raise InputError(f"{source.name} would be written to a terminal: pass --out FILE, or redirect it")
    else:
        totals = _write_to_stdout(write)
    if is_json:
        console.print_json(totals.summary() | {"removals": removals})
    console.inform(totals.headline())
    for remark in totals.remarks():
        console.inform(f"note: {remark}")
    if out is not None:
        console.inform(f"written: {out}")
    _inform_skipped(totals.skipped, totals.skipped_first, "passed through unchanged")


def _write_to_stdout(write: Callable[[BinaryIO], CleaningTotals]) -> CleaningTotals:
    """Print what ``write`` writes, all of it or, after an error, nothing."""
    with SpooledTemporaryFile(_IN_MEMORY) as whole:
        totals = write(cast(BinaryIO, whole))
        whole.seek(0)
        shutil.copyfileobj(whole, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return totals


def _cleaner(rules: Path, actions: Sequence[str], remove_suspected: bool, remove_all: bool) -> Cleaner:
    """Open a cleaner and change it as the options say."""
    from stickytoken.cleaning import open_cleaner
    from stickytoken.cleaning.spans import Action, SpanKind, actions_of, kind_of

    given = dict(_kind_and_action(value) for value in actions)
    if remove_suspected:
        given = {SpanKind.SUSPECTED.value: Action.REMOVE.value} | given
    try:
        chosen = actions_of(given)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--action") from error
    read = open_cleaner(rules)
    changed = {kind_of(name) for name in given}
    own_actions = dict(read.actions)
    for kind in changed:
        own_actions[kind] = chosen[kind]
    return stickytoken.Cleaner(
        read.rules,
        own_actions,
        replacement=read.replacement,
        source=read.source,
        remove_all=remove_all or read.remove_all,
    )


def _kind_and_action(value: str) -> tuple[str, str]:
    kind, sign, action = value.partition("=")
    if not sign:
        raise typer.BadParameter(f"{value!r} is not of the form KIND=ACTION", param_hint="--action")
    return kind.strip(), action.strip()


def _inform_skipped(count: int, first: Sequence[Skipped], what_became: str) -> None:
    """Name the first records that could not be read."""
    if not count:
        return
    records = "1 record" if count == 1 else f"{count:,} records"
    console.inform(f"note: {records} without readable text, {what_became}:")
    for skipped in first[:5]:
        console.inform(f"  {skipped.place}: {skipped.reason}")
