"""stickytoken scan and clean: find copies of sticky tokens in documents, and remove the copies."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.errors import InputError
from stickytoken.methods import Column
from stickytoken.settings.reading import Columns
from stickytoken.validation import as_json
from stickytoken.version import __version__
from stickytoken.words import counted

if TYPE_CHECKING:
    from stickytoken.cleaning import Cleaned, Cleaner
    from stickytoken.cleaning.files import CleaningTotals, OnCleaned
    from stickytoken.data.documents import Document
    from stickytoken.data.rewriting import Source
    from stickytoken.data.rows import Skipped
    from stickytoken.scanning.results import Scan


ScanFormat = StrEnum("ScanFormat", "TABLE JSON CSV SARIF")


@command(settings=("limit",))
def scan(
    run: Annotated[Path, typer.Argument(metavar="RUN|RULES")],
    documents: opt.Argument[str],
    *,
    columns: Columns,
    id_column: Annotated[str | None, opt.texts_option("--id")] = None,
    audit: opt.AuditFolder = None,
    allow: opt.AllowedWords = None,
    known: opt.KnownDocuments = None,
    source_column: Annotated[str | None, opt.setting()] = None,
    workers: Annotated[int | None, opt.setting(min=1)] = None,
    folder: Annotated[Path | None, opt.output_option("--scan-folder")] = None,
    out: opt.OutputOption[Path | None] = None,
    write_known: Annotated[Path | None, opt.setting()] = None,
    output_format: opt.FormatChoice[ScanFormat | None] = None,
    limit: opt.ListLimit[int] = 20,
) -> None:
    """Find documents with copies of sticky tokens, special tokens written as text, or repeated words.

    Run the same command again to continue an interrupted scan.

    Example: stickytoken scan runs/all-MiniLM-L6-v2-profile-0123456789ab documents.jsonl

    Args:
        run: Run folder of the model, or a file that clean --rules-out wrote.
        documents: Your documents: a txt file with one document per line; a csv, tsv, jsonl or parquet file;
            a folder; hub:REPOSITORY or hub:REPOSITORY@SPLIT; or - for stdin. Every file except parquet may be
            compressed (.gz). Stdin contains lines of text or, with --column, JSON lines.
        id_column: Column with the id. Default: found by name.
        source_column: Column with the source of a document. Default: the column named source.
        workers: Number of processes that search documents. Default: one per core.
        folder: Folder to save the scan in, so that it can be continued. Default: scan-<identity> in
            the run folder, where report finds it. With a rules file, the scan is not saved by default.
        out: File for the results instead of stdout (.json, .csv or .sarif), or a folder for the scan.
        write_known: Add the documents with findings to this file, for --known. Review it before you commit
            it.
        output_format: Print a summary with the worst documents (table), all results as JSON, or all documents
            with findings as CSV or SARIF. Default: the format that the extension of --out names, or table.
        limit: Maximum number of documents to list in a table.
    """
    from stickytoken.cleaning import names_rules_file
    from stickytoken.measurement.store import require_file_place
    from stickytoken.scanning.results import add_known, read_known
    from stickytoken.scanning.scan import read_rules

    output_format = output_format or _format_of(out)
    if output_format is ScanFormat.TABLE and out is not None:
        if out.suffix or folder is not None:
            raise InputError(
                f"--out {str(out)!r} names no format: end it in .json, .csv or .sarif, or pass a folder"
            )
        folder = out
        out = None
    inputs = (documents, run if names_rules_file(run) else None, allow)
    if out is not None:
        require_file_place(out, (*inputs, known))
    if write_known is not None:  # it may be the file of --known
        require_file_place(write_known, (*inputs, out))
        read_known(write_known)  # an error is raised before the scan
    origin = read_rules(run)
    opened_run = origin.run  # None if `run` is a rules file
    with console.progress_bar() as progress:
        finished_scan = stickytoken.scan(
            opened_run or run,
            documents,
            column=columns,
            id_column=id_column,
            source_column=source_column,
            words=opt.words_of_audit(audit, origin.run_identity),
            allow=allow,
            known=known,
            workers=workers,
            out=folder,
            in_run_folder=True,
            progress=progress,
        )
    _show_scan(finished_scan, output_format, out, limit)
    if write_known is not None:
        count = add_known(finished_scan, write_known)
        console.inform(f"written: {write_known} ({count:,} more documents)")
    scan_folder = finished_scan.path
    if opened_run is not None and scan_folder is not None and scan_folder.parent == opened_run.path:
        console.inform(f"for a report with this: stickytoken report {shlex.quote(str(opened_run.path))}")


def _show_scan(scan: Scan, output_format: ScanFormat, out: Path | None, limit: int) -> None:
    from stickytoken.measurement.store import write_atomically
    from stickytoken.scanning.wording import headline

    if output_format is ScanFormat.TABLE:
        _print_scan(scan, limit)
    elif out is None:
        console.print_document(_format_scan(scan, output_format))
    else:
        write_atomically(out, _format_scan(scan, output_format).encode())
        console.print_line(headline(scan))
        console.inform(f"written: {out}")


def _format_of(out: Path | None) -> ScanFormat:
    for output_format in ScanFormat:
        if out is not None and out.suffix == f".{output_format}":
            return output_format
    return ScanFormat.TABLE


def _format_scan(scan: Scan, output_format: ScanFormat) -> str:
    if output_format is ScanFormat.JSON:
        return as_json(scan.summary() | {"found_documents": scan.worst.to_dicts()})
    if output_format is ScanFormat.SARIF:
        from stickytoken.findings import sarif
        from stickytoken.scanning.wording import RULES, find_gaps, scan_findings

        return as_json(sarif(scan_findings(scan), RULES, __version__, find_gaps(scan)))
    import polars as pl

    # CSV has no lists, so the words of a document are joined to one text, and so are the pieces of its
    # excerpt.
    texts_of_lists = pl.col("words", "excerpt").list.eval(pl.element().struct.field("text"))
    table = scan.worst.with_columns(texts_of_lists.list.join(" | "), pl.col("kinds").list.join(" "))
    hostile_columns = pl.col("id", "source", "path", "words", "excerpt")
    escaped = hostile_columns.map_elements(console.escape_formula, return_dtype=pl.String)
    return table.with_columns(escaped).write_csv()


def _print_scan(scan: Scan, limit: int) -> None:
    from stickytoken.scanning import wording

    result = scan.result
    console.print_line(wording.headline(scan))
    _print_sources(scan)
    if len(scan.documents):
        _print_worst_documents(scan, limit)
    folder = "" if scan.path is None else f"; scan: {scan.path}"
    documents = f"{counted(result.documents, 'document')} of {scan.record.documents}"
    # The time is the total of all calls, because an earlier call may have done some of the work.
    console.print_line(f"{documents}, {result.seconds:,.0f} s in total{folder}")
    console.inform(f"read: {result.reading}")
    _inform_skipped(result.skipped, result.skipped_first, "skipped")


# Maximum number of sources with findings to list.
_MAX_SOURCES = 20


def _print_sources(scan: Scan) -> None:
    from stickytoken.scanning.wording import source_table

    columns, rows = source_table(scan, _MAX_SOURCES)
    if rows:
        console.print_table("by source", columns, rows)


def _print_worst_documents(scan: Scan, limit: int) -> None:
    worst = scan.worst.head(limit)
    columns = [Column("id", "document"), Column("causes", "cause"), Column("words", "found")]
    columns += [Column("copies", "copies"), Column("share", "share of text", 0, "%"), Column("text", "text")]
    records = [_with_findings_as_text(document) for document in worst.iter_rows(named=True)]
    title = f"the worst {len(worst)} of {len(scan.documents):,} documents, findings in [[ ]]"
    console.print_records(title, columns, records)


def _with_findings_as_text(document: dict[str, Any]) -> dict[str, Any]:
    """Return a row of documents.parquet with its causes, words and excerpt as texts for a table."""
    from stickytoken.cleaning.spans import SpanKind

    words = [f"{word['text']} \N{MULTIPLICATION SIGN}{word['copies']}" for word in document["words"][:3]]
    excerpt = ""
    for piece in document["excerpt"]:
        excerpt += f"[[{piece['text']}]]" if piece["found"] else piece["text"]
    on_one_line = " ".join(excerpt.split())
    causes = ", ".join(SpanKind(kind).cause for kind in document["kinds"])
    return document | {"causes": causes, "words": ", ".join(words), "text": on_one_line}


CleanFormat = StrEnum("CleanFormat", "TEXT JSON")

# Maximum size, in bytes, of the cleaned documents for stdout that are kept in memory. If they are larger, all
# of them are written to a temporary file first.
_IN_MEMORY = 64 * 2**20


@command()
def clean(
    rules: Annotated[Path, typer.Argument(metavar="RUN|RULES")],
    file: Annotated[Path, typer.Argument(show_default=True)] = Path("-"),
    *,
    columns: Columns,
    id_column: Annotated[str | None, opt.texts_option("--id")] = None,
    unsafe_fixes: Annotated[bool, opt.method_option("--unsafe-fixes")] = False,
    audit: opt.AuditFolder = None,
    allow: opt.AllowedWords = None,
    known: opt.KnownDocuments = None,
    out: opt.OutputOption[Path | None] = None,
    quarantine: opt.OutputOption[Path | None] = None,
    diff: Annotated[bool, opt.output_option("--diff")] = False,
    rules_out: opt.OutputOption[Path | None] = None,
    output_format: opt.FormatChoice[CleanFormat] = CleanFormat.TEXT,
) -> None:
    """Remove copies of flagged tokens and special tokens from documents, or set such documents aside.

    By default, flagged tokens in a row and special tokens go. The rest is counted.

    Only the text changes: the format, other columns and unreadable records stay as they are.

    Example: stickytoken clean runs/minilm documents.jsonl --out cleaned.jsonl

    Args:
        rules: Run folder, or a file that --rules-out wrote.
        file: Your documents: a txt file with one document per line; a csv, tsv, jsonl or parquet file; or -
            for stdin. Every file except parquet may be compressed (.gz). Stdin contains lines of text or,
            with --column, JSON lines, which are answered one by one.
        id_column: Column with the id, for messages. Default: found by name.
        unsafe_fixes: Also remove scattered copies of flagged tokens, repetitions (except for the first copy)
            and suspected copies. They may be ordinary words, so look at the changes first (--diff).
        out: File for the documents instead of stdout. The output file may be FILE itself, and is written
            completely or not at all.
        quarantine: Write the documents that would be changed to this file instead of changing them, and all
            others to --out. With --unsafe-fixes, documents with any finding.
        diff: Print the changes instead of the documents. Each change is printed with its cause and the words
            around the change, with removed text as [-text-].
        rules_out: Write the rules to a JSON file, which clean, scan and check accept in place of the run.
            Documents are read only if FILE is passed.
        output_format: Print the cleaned documents (text), or a list of the removals as JSON.
    """
    from stickytoken.cleaning import names_rules_file
    from stickytoken.data.documents import NamedColumns
    from stickytoken.data.rewriting import names_format_of, open_source
    from stickytoken.measurement.store import require_file_place

    is_json = output_format is CleanFormat.JSON
    if diff and is_json:
        raise typer.BadParameter("pass either --diff or --format json, not both", param_hint="--diff")
    if quarantine is not None and (out is None or diff or is_json):
        raise typer.BadParameter("it needs --out, and neither --diff nor --format", param_hint="--quarantine")
    cleaner = _open_cleaner(rules, audit, allow, known, unsafe_fixes=unsafe_fixes)
    if rules_out is not None:  # it may be the rules file
        require_file_place(rules_out, (file, allow, known, out, quarantine))
        cleaner.save(rules_out)
        rules_saved = f"{len(cleaner.rules.words):,} words, {len(cleaner.rules.specials):,} special tokens"
        console.inform(f"written: {rules_out} ({rules_saved})")
        if file == Path("-"):  # no file was passed, so only the rules were asked for
            return
    source = open_source(file, NamedColumns(columns, id_column))
    removals: list[dict[str, Any]] = []

    def show(document: Document, cleaned: Cleaned) -> None:
        if diff:
            _print_difference(document, cleaned)
        elif is_json:
            for removal in cleaned.removals:
                text = document.text[removal.start : removal.end]
                removals.append({"id": document.id, "line": document.line, **asdict(removal), "text": text})

    if out is not None:
        others = (rules if names_rules_file(rules) else None, allow, known)
        _require_places(source, out, quarantine, others)
        totals = _write_files(source, cleaner, out, quarantine, show)
    else:
        totals = _write_to_stdout(source, cleaner, show, only_shows=diff or is_json)
    if is_json:
        console.print_json(totals.summary() | {"removals": removals})
    _inform_totals(totals)
    if cleaner.rules.normalizer is None:
        unknown = f"{rules} doesn't say which spellings the model reads alike"
        console.inform(f"note: {unknown}, so words were compared exactly")
    if out is not None:
        console.inform(f"written: {out}" + ("" if quarantine is None else f" and {quarantine}"))
        shared_options = {"--id": id_column, "--audit": audit, "--allow": allow, "--known": known}
        # `scan` chooses the format by the file's extension.
        if names_format_of(source, out):
            console.inform(f"verify: {_verifying_command(rules, out, columns, shared_options)}")
    elif diff or is_json:  # stdout has the removals
        console.inform("no documents were written: --out FILE writes them")


def _require_places(
    source: Source, out: Path, quarantine: Path | None, others: Sequence[Path | None]
) -> None:
    """Raise an error if an output cannot be written, or would replace one of the ``others`` or documents.

    ``out`` may replace the documents themselves, but then the quarantine must not replace earlier ones.
    """
    from stickytoken.data.rewriting import is_compressed, require_same_format
    from stickytoken.measurement.store import is_same_file, require_file_place

    documents = source.path or "-"
    require_same_format(source, out)
    require_file_place(out, others)
    if quarantine is None:
        return
    require_same_format(source, quarantine)
    if is_compressed(out) is not is_compressed(quarantine):
        raise InputError(f"{out} and {quarantine}: compress both (.gz), or neither")
    require_file_place(quarantine, (*others, documents, out))
    if is_same_file(out, documents) and quarantine.is_file() and quarantine.stat().st_size:
        raise InputError(
            f"{quarantine} may have documents that were taken out of {out} earlier: move it away, or pass "
            "another file to --quarantine"
        )


def _write_files(
    source: Source, cleaner: Cleaner, out: Path, quarantine: Path | None, show: OnCleaned
) -> CleaningTotals:
    """Write the cleaned documents to a file and, if there is a quarantine, set documents aside in another."""
    from stickytoken.cleaning.files import clean_file
    from stickytoken.data.rewriting import is_compressed
    from stickytoken.measurement.store import open_atomically

    with ExitStack() as stack:
        # What is entered last is finished first. So a document that is set aside is in the quarantine before
        # it disappears from ``out``, which may be the file with the documents.
        stream = stack.enter_context(open_atomically(out))
        aside = None if quarantine is None else stack.enter_context(open_atomically(quarantine))
        progress = stack.enter_context(console.late_progress(seconds=2))
        return clean_file(
            source,
            cleaner,
            stream,
            quarantine=aside,
            on_cleaned=show,
            compress=is_compressed(out),
            progress=progress,
        )


def _write_to_stdout(
    source: Source, cleaner: Cleaner, show: OnCleaned, *, only_shows: bool
) -> CleaningTotals:
    """Write the cleaned documents to stdout, or nothing if the changes alone are shown.

    A file is written as a whole or, after an error, not at all. Standard input is answered line by line.
    """
    from stickytoken.cleaning.files import clean_file

    is_stdin = source.path is None
    with ExitStack() as stack:
        stream: BinaryIO = sys.stdout.buffer
        if only_shows:
            stream = stack.enter_context(Path(os.devnull).open("wb"))
        elif sys.__stdout__ is None:
            raise InputError("standard output is closed: pass --out FILE, or redirect it")
        elif source.is_binary and sys.stdout.isatty():
            raise InputError(f"{source.name} would be written to a terminal: pass --out FILE, or redirect it")
        elif not is_stdin:
            stream = cast(BinaryIO, stack.enter_context(SpooledTemporaryFile(_IN_MEMORY)))
        progress = stack.enter_context(console.late_progress(seconds=2))
        totals = clean_file(source, cleaner, stream, on_cleaned=show, progress=progress)
        if not is_stdin and not only_shows:  # the whole file was cleaned, so it can be written
            stream.seek(0)
            shutil.copyfileobj(stream, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return totals


def _inform_totals(totals: CleaningTotals) -> None:
    console.inform(f"read: {totals.meter.summary()}")
    console.inform(totals.headline())
    for remark in totals.remarks():
        console.inform(f"note: {remark}")
    _inform_skipped(totals.skipped, totals.skipped_first, "passed through unchanged")


def _print_difference(document: Document, cleaned: Cleaned) -> None:
    from stickytoken.cleaning.excerpts import word_diff

    place = document.id if document.line is None else f"line {document.line}"
    has_other_id = document.id not in (place, "")  # an id that the place does not name
    console.print_line(f"{place}, id {document.id}" if has_other_id else place)
    for line in word_diff(document.text, cleaned.removals):
        console.print_line(f"  {line}")


def _verifying_command(rules: Path, out: Path, columns: Columns, options: Mapping[str, object]) -> str:
    words = ["stickytoken", "scan", _path_argument(rules), _path_argument(out), *columns.as_options()]
    for option, value in options.items():
        if value is not None:
            words.append(f"{option}={value}")
    return shlex.join(words)


def _path_argument(path: Path) -> str:
    # A path that begins with a hyphen would be read as an option.
    return f"./{path}" if str(path).startswith("-") else str(path)


def _open_cleaner(
    rules: Path, audit: Path | None, allow: Path | None, known: Path | None, *, unsafe_fixes: bool
) -> Cleaner:
    from stickytoken.cleaning import open_cleaner

    cleaner = open_cleaner(rules)
    run_identity = cleaner.source.get("identity")  # of the run that the rules are from
    sticky_words = opt.words_of_audit(audit, run_identity)
    extended = cleaner.rules.extended(sticky_words, allow, known)
    return stickytoken.Cleaner(extended, unsafe_fixes=unsafe_fixes, source=cleaner.source)


# Maximum number of unreadable records to list.
_SKIPPED_SHOWN = 5


def _inform_skipped(count: int, first: Sequence[Skipped], what_became: str) -> None:
    if not count:
        return
    console.inform(f"note: {counted(count, 'record')} without readable text, {what_became}:")
    for skipped in first[:_SKIPPED_SHOWN]:
        console.inform(f"  {skipped.place}: {skipped.reason}")
